"""A stranger who commits without end: writes a file into each of many directories, which are never committed, and renames
new directories from several threads. Run as a program by that user, until it is killed:

    stranger_commits.py FOLDER --directories N --renames N

Prints a line once the directories are written and so many are renamed, and goes on.
"""

import argparse
import itertools
import os
import threading

THREADS = 4


def write(folder, count):
    for number in range(count):
        directory = f"{folder}/written-{number}"
        os.mkdir(directory)
        with open(directory + "/file", "wb") as file:
            file.write(b"x")


def rename(folder, thread, told_after):
    for number in itertools.count():
        path = f"{folder}/{thread}-{number}"
        os.mkdir(path)
        os.rename(path, path + "c")
        if thread == 0 and number == told_after:
            print("renamed", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--directories", type=int, required=True)
    parser.add_argument("--renames", type=int, required=True)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.directories)
    for thread in range(THREADS):
        threading.Thread(target=rename, args=(arguments.folder, thread, arguments.renames // THREADS)).start()


if __name__ == "__main__":
    main()
