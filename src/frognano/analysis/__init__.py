"""What explains a run: intervals, the HTML report, live progress."""
