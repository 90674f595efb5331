"""`hpcrl diagnose`: what holds a run up, what is wrong with it, and what to change."""
