"""Drawing functions: matplotlib and plotly, no TensorFlow."""
