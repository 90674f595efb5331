"""A process that polls a run as `hpcrl watch` does and proves every row by the writer's hashes. Made to be killed."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from hpcrl.storage.following import Follower
from hpcrl.storage.result_file import next_hash
from hpcrl.storage.schema import TABLES


class Prover:
    """Raises ValueError for a row that is not as it was written, or not where."""

    def __init__(self):
        self.rows = dict.fromkeys(TABLES, 0)
        self.proved = dict.fromkeys(TABLES, 0)
        self._unproved = {name: TABLES[name].empty() for name in TABLES}
        self._hash = dict.fromkeys(TABLES, "")

    def take(self, table, rows):
        columns = TABLES[table].dtype
        own = np.zeros(len(rows), columns)
        for name in columns.names:
            own[name] = rows[name]
        self.rows[table] += len(own)
        if table != "hashes":
            self._unproved[table] = np.concatenate([self._unproved[table], own])
            return
        for name, end, value in own.tolist():
            self._prove(name.decode(), end, value.decode())

    def _prove(self, table, end, value):
        count = end - self.proved[table]
        rows = self._unproved[table]
        if len(rows) < count:
            raise ValueError(f"{table}: {end} rows count, {self.proved[table] + len(rows)} were read")
        found = next_hash(self._hash[table], rows[:count])
        if found != value:
            raise ValueError(f"{table}: rows {self.proved[table]} to {end} are not those of their flush")
        self.proved[table], self._hash[table], self._unproved[table] = end, value, rows[count:]


def main(run, every_s):
    follower, prover = Follower(Path(run), list(TABLES)), Prover()  # hashes come last
    while True:
        follower.look()
        for part in follower.rows():
            prover.take(*part)
        if follower.trouble:
            raise ValueError(follower.trouble)
        # one call per line: a kill cannot cut what was said before
        os.write(1, f"{prover.rows['updates']} {sum(prover.proved.values())}\n".encode())
        time.sleep(every_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
