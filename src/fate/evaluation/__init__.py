"""Named protocols, average precision, false positives and time to detection, for the predictions of any detector."""
