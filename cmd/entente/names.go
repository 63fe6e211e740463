package main

import (
	"strings"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Names of the API are COLLECTION/NAME. People say NAME, and may say both.

func peerName(s string) string     { return inCollection("peers/", s) }
func contractName(s string) string { return inCollection("contracts/", s) }
func peeringName(s string) string  { return inCollection("peerings/", s) }
func tokenName(s string) string    { return inCollection("tokens/", s) }

func inCollection(prefix, s string) string {
	return prefix + strings.TrimPrefix(s, prefix)
}

// requestName is the name of a request that is told as PEER/ID.
func requestName(s string) (string, error) {
	peer, id, ok := strings.Cut(strings.TrimPrefix(s, "peers/"), "/")
	id = strings.TrimPrefix(id, "requests/")
	if !ok || peer == "" || id == "" || strings.Contains(id, "/") {
		return "", usageError("request %q: want PEER/ID, as `entente requests` lists them", s)
	}
	return "peers/" + peer + "/requests/" + id, nil
}

// short is a name without its collections: peers/NAME is NAME, and
// peers/NAME/requests/ID is NAME/ID.
func short(name string) string {
	parts := strings.Split(name, "/")
	var own []string
	for i := 1; i < len(parts); i += 2 {
		own = append(own, parts[i])
	}
	if len(own) == 0 {
		return name
	}
	return strings.Join(own, "/")
}

// shortName is a peer's name without peers/.
func shortName(p *ententev1.Peer) string { return short(p.GetName()) }

func orNone(s, none string) string {
	if s == "" {
		return none
	}
	return s
}
