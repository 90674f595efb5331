"""`hpcrl audit`: the lag contract, proved from the result file of a run."""
