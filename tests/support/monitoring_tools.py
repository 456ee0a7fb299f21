"""The metrics, alerts and dashboard of a mount, and Debian's Prometheus, for the tests of them."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import urllib.parse

import yaml

from cairnfs_mount import free_port, program, run

SUPPORT = os.path.dirname(os.path.abspath(__file__))
MONITORING = os.path.join(SUPPORT, "..", "..", "docs", "monitoring")
ALERTS = os.path.join(MONITORING, "alerts.yml")


def fetch(address, path):
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, (path, answer.status, text)
        return text


def dashboard():
    with open(os.path.join(MONITORING, "dashboard.json"), encoding="utf-8") as file:
        return json.load(file)


def dashboard_queries(rate_interval="1m"):
    """Title, query as Grafana sends it, and legend."""
    filled = {"$job": "cairnfs", "$directory": ".*", "$__rate_interval": rate_interval}
    queries = []
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for variable, value in filled.items():
                expression = expression.replace(variable, value)
            assert "$" not in expression, expression
            queries.append((panel["title"], expression, target["legendFormat"]))
    return queries


def save(run_directory, step, content):
    temporary = f"{run_directory}/step-{step}.tmp"
    os.mkdir(temporary)
    with open(temporary + "/file", "wb") as file:
        file.write(content)
    os.rename(temporary, f"{run_directory}/step-{step}")


def make_run(path, owner=0):
    os.makedirs(path)
    os.chown(path, owner, owner)
    run(program("cairnfs"), "retain", path, "--keep-last", "9", "--match", r"step-(\d+)")
    return path


@contextlib.contextmanager
def prometheus(scratch, target):
    """One that scrapes `target`, and has the alerts; its address."""
    config = os.path.join(scratch.path, "prometheus.yml")
    shutil.copy(ALERTS, scratch.path)
    with open(config, "w", encoding="utf-8") as file:
        yaml.safe_dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["alerts.yml"],
                        "scrape_configs": [{"job_name": "cairnfs", "static_configs": [{"targets": [target]}]}]}, file)
    run("promtool", "check", "config", config)
    address = f"127.0.0.1:{free_port()}"
    with open(os.path.join(scratch.path, "prometheus.log"), "wb") as log:
        with subprocess.Popen(["prometheus", "--config.file=" + config, "--web.listen-address=" + address,
                               "--storage.tsdb.path=" + os.path.join(scratch.path, "tsdb")], stdout=log, stderr=log) as server:
            try:
                yield address
            finally:
                server.kill()


def ask(address, expression):
    answer = json.loads(fetch(address, "/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
    assert answer["status"] == "success", (expression, answer)
    return answer["data"]["result"]


def is_reached(address):
    with contextlib.suppress(OSError, AssertionError, http.client.HTTPException):
        return any(result["value"][1] == "1" for result in ask(address, "up"))
    return False
