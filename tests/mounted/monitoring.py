#!/usr/bin/env python3
"""The metrics of runs, and the alerts and the dashboard of docs/monitoring, in the real promtool and Prometheus: they load
there, and name only metrics that real mounts serve. Run as root."""

import contextlib
import json
import os
import re
import subprocess
import sys

import jsonschema
import yaml

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cairnfs_mount import SMALL, Mount, Scratch, free_port, run, run_cases
from cluster import Cluster, wait_until
from monitoring_tools import (ALERTS, MONITORING, SUPPORT, ask, dashboard, dashboard_queries, fetch, is_reached, make_run,
                              prometheus, save)

USER = 1234
MIB = 1 << 20


def families(text):
    """The types of the metrics of a scrape, by name."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def values(text, name):
    """Those of one metric, by the label `directory`."""
    return {directory: float(value)
            for directory, value in re.findall(rf'^{name}{{directory="(.*)"}} (\S+)$', text, re.M)}


def alert_queries():
    with open(ALERTS, encoding="utf-8") as file:
        return [(rule["alert"], rule["expr"]) for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]


def alerts_fire_on_what_they_say():
    run("promtool", "check", "rules", ALERTS)
    run("promtool", "test", "rules", os.path.join(SUPPORT, "alerts_test.yml"))
    with open(os.path.join(SUPPORT, "alerts_test.yml"), encoding="utf-8") as file:
        tested = file.read()
    for alert, _ in alert_queries():
        assert f'alertname="{alert}"' in tested, f"no test shows that {alert} fires"
        with open(os.path.join(MONITORING, "README.md"), encoding="utf-8") as page:
            assert f"`{alert}`" in page.read(), f"docs/monitoring/README.md does not name {alert}"


def the_dashboard_fits_its_schema():
    board = dashboard()
    with open(os.path.join(SUPPORT, "grafana_dashboard.schema.json"), encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(board, schema)
    identities = [panel["id"] for panel in board["panels"]]
    assert len(set(identities)) == len(identities), identities
    cells = [(x, y) for place in (panel["gridPos"] for panel in board["panels"])
             for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24, "panels overlap, or stand out"
    variables = {"$" + variable["name"] for variable in board["templating"]["list"]} | {"$__rate_interval"}
    used = set(re.findall(r"\$\w+", " ".join(target["expr"] for panel in board["panels"]
                                             for target in panel.get("targets", []))))
    assert used <= variables, used - variables
    # What is wrong is seen.
    for spoil in (lambda panel: panel.pop("gridPos"), lambda panel: panel.update(type="graph"),
                  lambda panel: panel["targets"][0].pop("expr")):
        wrong = dashboard()
        spoil(wrong["panels"][1])
        with contextlib.suppress(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
            raise AssertionError("a wrong dashboard fits the schema")


def saves_told(address, name, count):
    """The scrape, once it has so many saves of the run."""
    def told():
        text = fetch(address, "/metrics")
        return text if values(text, "cairnfs_run_commit_seconds_count").get(name) == count else None
    return wait_until(told, what=f"{count} saves of {name} in the metrics")


def runs_are_told():
    """A series for each run, and none that Prometheus cannot read or that names what a stranger could not list."""
    with Scratch() as scratch:
        address = f"127.0.0.1:{free_port()}"
        mount = Mount(scratch, options=f"{SMALL},metrics_address={address}")
        os.chmod(mount.path, 0o755)
        content = os.urandom(MIB)
        plain, odd = make_run(mount.path + "/run"), make_run(mount.path + '/a "b" \\c {d="e"} 1', USER)
        hidden = make_run(mount.path + "/private/secret", USER)
        os.chmod(mount.path + "/private", 0o700)
        broken = [make_run(mount.path + os.fsdecode(name), USER) for name in (b"/two\nlines", b"/no \xff text")]
        save(plain, 1, content)
        save(plain, 2, content)
        for path in (odd, hidden, *broken):
            save(path, 1, content)
        os.mkdir(mount.path + "/run/logs.tmp")
        os.rename(mount.path + "/run/logs.tmp", mount.path + "/run/logs")
        numbers = [f"#{os.stat(path).st_ino}" for path in (hidden, *broken)]
        for name in ('/a \\"b\\" \\\\c {d=\\"e\\"} 1', *numbers):
            saves_told(address, name, 1)
        text = saves_told(address, "/run", 2)
        assert values(text, "cairnfs_run_write_seconds_count")["/run"] == 2, text
        assert values(text, "cairnfs_run_training_seconds_count")["/run"] == 1, text
        assert values(text, "cairnfs_run_written_bytes_total")["/run"] == 2 * MIB, text
        assert values(text, "cairnfs_run_checkpoint_step")["/run"] == 2, text
        assert 0 <= values(text, "cairnfs_run_checkpoint_age_seconds")["/run"] < 3600, text
        assert "secret" not in text and "private" not in text and "cairnfs_run_new_bytes" not in text, text
        told = {each["directory"]: each for each in mount.status()["runs"]}
        assert told["/run"]["commit_seconds"]["count"] == 2 and told["/run"]["new_bytes_total"] == MIB, told
        # It exits with 1 for what is no metric; with 3 where it does not like a name.
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert checked.returncode in (0, 3) and "error while linting" not in checked.stderr, checked
        mount.umount()
        mount = Mount(scratch, options=f"{SMALL},metrics_address={address}")
        steps = {}

        def all_are_known():
            steps.update(values(fetch(address, "/metrics"), "cairnfs_run_checkpoint_step"))
            return len(steps) == 5
        wait_until(all_are_known, what="the runs are known after a restart")
        assert steps["/run"] == 2, steps
        mount.umount()


def prometheus_loads_them():
    """The alerts are evaluated and the dashboard's queries answered, over a scrape of a real mount; and each metric in
    them is one that a mount serves, alone or in a cluster."""
    with Scratch() as scratch:
        target = f"127.0.0.1:{free_port()}"
        mount = Mount(scratch, options=f"{SMALL},dedup=owner,metrics_address={target}")
        directory = make_run(mount.path + "/run")
        for step in (1, 2):
            save(directory, step, os.urandom(MIB))
        served = families(saves_told(target, "/run", 2))
        with Cluster(scratch, hosts=1, metadata="node", copies=1, options={"metrics_address": "127.0.0.1:9464"}) as cluster:
            cluster.start()
            served |= families(cluster.hosts[0].run(
                sys.executable, "-c",
                "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9464/metrics').read().decode())"))
            cluster.stop()
        for histogram in [name for name, kind in served.items() if kind == "histogram"]:
            served |= {histogram + suffix: "histogram" for suffix in ("_bucket", "_sum", "_count")}
        queries = alert_queries() + [query[:2] for query in dashboard_queries()]
        for title, expression in queries:
            unknown = set(re.findall(r"\bcairnfs_\w+", expression)) - set(served)
            assert not unknown, f"{title}: no mount serves {', '.join(unknown)}"
        with prometheus(scratch, target) as address:
            wait_until(lambda: is_reached(address), what="Prometheus scrapes the mount")
            for title, expression in queries:
                assert isinstance(ask(address, expression), list), title
            age = ask(address, 'cairnfs_run_checkpoint_age_seconds{job="cairnfs"}')
            assert [result["metric"]["directory"] for result in age] == ["/run"], age

            def rules():
                groups = json.loads(fetch(address, "/api/v1/rules"))["data"]["groups"]
                return [rule for group in groups for rule in group["rules"]]
            evaluated = wait_until(lambda: rules() if all(rule["health"] != "unknown" for rule in rules()) else None)
            assert [rule["name"] for rule in evaluated if rule["health"] != "ok"] == [], evaluated
            assert len(evaluated) == len(alert_queries())
            assert [rule["name"] for rule in evaluated if rule["state"] == "firing"] == [], evaluated
        mount.umount()


if __name__ == "__main__":
    sys.exit(run_cases([alerts_fire_on_what_they_say, the_dashboard_fits_its_schema, runs_are_told, prometheus_loads_them]))
