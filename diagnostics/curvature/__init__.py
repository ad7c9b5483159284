"""The second derivatives of a loss: products with them, their eigenvalues, trace and spectral density."""
