"""`hpcrl plan`: what a run would do here, before it is submitted."""
