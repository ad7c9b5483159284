"""What averaging breaks: forgetting by class, collapse of the features, calibration, how clients fare."""
