// Package browse collects what discovery finds, in domains and, from the reports of nodes, on LANs:
// where it looked, which clusters are there, and which of their addresses may be dialled. It
// validates again what others wrote.
package browse
