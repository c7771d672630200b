"""What needs packages that not every generator needs: Apache Beam, plots, the demo's text."""
