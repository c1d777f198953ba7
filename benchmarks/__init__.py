"""What measures Laconic and writes its results page: not installed, run from a clone."""
