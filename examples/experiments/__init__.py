"""What all experiments share: precisions, runs with resume, comparisons, reports."""
