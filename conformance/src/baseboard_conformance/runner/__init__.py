"""Cases are done in worker processes: whatever a backend does to its process is one result, and the run goes on."""
