// Package evidence verifies contracts and statements of use offline: from files, with
// nothing but the IDs of the two clusters.
package evidence
