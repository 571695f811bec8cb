"""Coalition values that an explainer is trained from: their choice, evaluation and storage, and labels of low noise."""
