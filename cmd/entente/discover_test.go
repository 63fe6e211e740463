package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// discovered is a world in which two have peered and discovery finds others.
func discovered() *world {
	w := peered()
	sighting := func(source, where, node string, endpoints ...string) *ententev1.Sighting {
		return &ententev1.Sighting{Source: source, Where: where, Node: node, Endpoints: endpoints, SeeTime: timestamppb.New(epoch.Add(-time.Minute))}
	}
	untrusted := func(reason string) *ententev1.Condition {
		return &ententev1.Condition{Type: "Trusted", Status: "False", Reason: reason}
	}
	w.hints = []*ententev1.Peer{
		{
			Name: "peers/workshop", ClusterId: strings.Repeat("w", 32), Found: "LAN", Conditions: []*ententev1.Condition{untrusted("Discovered")},
			Sightings: []*ententev1.Sighting{sighting("LAN", "eth0", "node-a", "192.0.2.7:7443", "[2001:db8::7]:7443"), sighting("DNS", "example.com", "", "198.51.100.7:7443")},
		},
		{
			Name: "peers/provider-llllllll", ClusterId: strings.Repeat("l", 32), Found: "LAN",
			Conditions: []*ententev1.Condition{untrusted("Discovered"), {
				Type: "Impostor", Status: "True", Reason: "NameOfAnother", Message: "it calls itself \"provider\x1b[2J\" as the peer provider does, and has another key",
			}},
			Sightings: []*ententev1.Sighting{sighting("LAN", "eth0", "node-a", "192.0.2.66:7443")},
		},
	}
	return w
}

func TestDiscover(t *testing.T) {
	golden(t, "discover", discovered(),
		[]string{"discover"}, []string{"discover", "--lan"}, []string{"discover", "--domain", "Example.com."}, []string{"discover", "--domain", "example.org"},
		[]string{"discover", "--domain", "example.com", "-o", "yaml"}, []string{"info"},
	)
	golden(t, "discover-none", peered(), []string{"discover"}, []string{"discover", "-o", "json"})
	for _, args := range [][]string{{"discover", "--watch"}, {"discover", "--watch", "--domain", "example.com", "-o", "json"}} {
		golden(t, "discover-watch"+map[bool]string{true: "-domain"}[len(args) > 2], discovered(), args)
	}
}
