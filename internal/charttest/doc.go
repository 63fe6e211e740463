// Package charttest holds the tests of the Helm chart charts/entente: what it
// renders, what its objects may do, and, on a real API server, that its policies
// let through what they should and nothing else.
package charttest
