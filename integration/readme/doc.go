// Package readme runs the tour of README.md as it stands: all blocks marked console
// in its section "Five minutes with two clusters", in their order, in one shell, in a
// clone in which nothing was built yet.
//
// Blocks with names that a reader has to replace are marked sh, and are not run.
package readme
