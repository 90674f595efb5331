"""A real Slurm on emulated hosts of one machine; `slurm/testcluster/testcluster --help` teaches."""
