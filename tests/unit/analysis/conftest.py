import sys

from tests.unit.analysis.support import ANALYSIS

sys.path.append(str(ANALYSIS))  # as a script's own folder is when it runs
