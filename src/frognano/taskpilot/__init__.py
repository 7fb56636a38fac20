"""What makes tasks: sources, the statement ladder, calibration, the pilot."""
