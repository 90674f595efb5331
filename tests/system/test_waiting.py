"""What the writer holds reaches the disk while nothing else happens."""

from tests.system.support import FOREVER, start


def test_rows_reach_the_file_while_no_others_follow(tmp_path):
    """The first env_step takes longer than the test looks: nothing travels."""
    sleeping = ("env.id=slow", 'env.kwargs={"seconds": 600}', FOREVER)
    with start(tmp_path, *sleeping) as running:
        running.until(lambda: running.run_dir is not None and len(running.pids()) == 3)
