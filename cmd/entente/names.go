package main

import "strings"

// Names of the API are COLLECTION/NAME. People write NAME, and may write both.

func peerName(s string) string     { return inCollection("peers/", s) }
func contractName(s string) string { return inCollection("contracts/", s) }
func peeringName(s string) string  { return inCollection("peerings/", s) }
func tokenName(s string) string    { return inCollection("tokens/", s) }

// inCollection returns no name for an empty one.
func inCollection(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + strings.TrimPrefix(s, prefix)
}
