"""Communication measured on real ranks, each piece beside what it is compared with, in one run."""
