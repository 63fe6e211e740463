// Package trust makes clusters trust each other: by a token, by an introduction that an
// administrator approves, or by proving that both know a group's secret.
package trust
