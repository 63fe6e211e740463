// Package trust is how clusters come to trust each other: by a token, by an introduction
// that an administrator decides about, or by proving that both hold a group's secret.
package trust
