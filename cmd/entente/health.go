package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// problems is what is wrong with a cluster and its peerings, a line each.
func problems(info *ententev1.GetInfoResponse, peers []*ententev1.Peer) []string {
	var all []string
	say := func(lines ...string) {
		for _, line := range lines {
			if line = printer.Clean(line); !slices.Contains(all, line) {
				all = append(all, line)
			}
		}
	}
	// The agent tells of hops, too, in the same words.
	say(info.GetProblems()...)
	for _, p := range peers {
		say(problemsOf(p)...)
	}
	return all
}

// problemsOf is what is wrong with a peering: each hop that should be up and is
// not. A cluster that is known and not joined is not wrong, nor is one that was
// denied.
func problemsOf(p *ententev1.Peer) []string {
	open := openContracts(p, "")
	if !isTrue(p, "Trusted") && len(open) == 0 {
		return nil
	}
	hops := []string{"Trusted", "Connected"}
	if conditionOf(p, "CertificateValid") != nil {
		hops = append(hops, "CertificateValid")
	}
	if len(open) > 0 {
		if conditionOf(p, "Network").GetReason() != "NotWanted" {
			hops = append(hops, "Network")
		}
		hops = append(hops, "Offloading")
	}
	var out []string
	for _, hop := range hops {
		if !isTrue(p, hop) {
			out = append(out, fmt.Sprintf("peer %s: %s is %s%s", format.ShortName(p), hop, statusOf(p, hop), because(p, hop)))
		}
	}
	return out
}

func unhealthy(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return &codeError{exitUnhealthy, fmt.Errorf("unhealthy\n  %s", strings.Join(problems, "\n  "))}
}
