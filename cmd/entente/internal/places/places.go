// Package places says where clusters are discovered, and what hinders that.
package places

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/discovery/dnssd"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Places are where clusters are discovered: on LANs, and in domains.
type Places struct {
	LAN     bool
	Domains []string
}

// all reports whether no places are named, which means all of them.
func (s *Places) all() bool { return !s.LAN && len(s.Domains) == 0 }

// Of returns the sightings of a peer at these places.
func (s *Places) Of(p *ententev1.Peer) []*ententev1.Sighting {
	return slices.DeleteFunc(slices.Clone(p.GetSightings()), func(m *ententev1.Sighting) bool {
		switch m.GetSource() {
		case string(v1alpha1.SourceLAN):
			return !s.LAN && len(s.Domains) > 0
		case string(v1alpha1.SourceDNS):
			return (s.LAN || len(s.Domains) > 0) && !slices.Contains(s.Domains, m.GetLocation())
		}
		return s.LAN || len(s.Domains) > 0
	})
}

// Check normalizes the domains; given says whether the flag was given.
func (s *Places) Check(given bool) error {
	if given && len(s.Domains) == 0 {
		return exit.Usagef("--domain: want a DNS name")
	}
	for i, d := range s.Domains {
		if err := dnssd.CheckDomain(d); err != nil {
			return exit.Usagef("--domain: %w", err)
		}
		s.Domains[i] = bareDomain(d)
	}
	return nil
}

// Browsed returns where a cluster looks for others. It reads the flags of the agent's youngest
// pod: callers that reach the agent may list its pods, and the admin API does not return the flags.
func Browsed(ctx context.Context, clients kubernetes.Interface, namespace string) (*Places, error) {
	pods, err := clients.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: client.AgentSelector})
	if err != nil {
		return nil, fmt.Errorf("list the agent's pods: %w", err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("no pod of the agent in namespace %s", namespace)
	}
	youngest := slices.MaxFunc(pods.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	b := &Places{}
	for _, container := range youngest.Spec.Containers {
		for _, arg := range container.Args {
			b.LAN = b.LAN || arg == "--discovery-lan"
			if domain, ok := strings.CutPrefix(arg, "--discovery-domain="); ok {
				b.Domains = append(b.Domains, bareDomain(domain))
			}
		}
	}
	return b, nil
}

// bareDomain is a domain as sightings write it.
func bareDomain(domain string) string { return strings.TrimSuffix(strings.ToLower(domain), ".") }

// Off returns an error if discovery is switched off at all of these places.
func (s *Places) Off(label string, b *Places) error {
	if b == nil {
		return nil
	}
	var wrong, change []string
	if s.all() && !b.LAN && len(b.Domains) == 0 {
		wrong, change = []string{"discovery is off"}, []string{"set discovery.lan.enabled or discovery.domains"}
	}
	if s.LAN && !b.LAN {
		wrong, change = append(wrong, "discovery on LANs is off"), append(change, "set discovery.lan.enabled")
	}
	for _, domain := range s.Domains {
		if !slices.Contains(b.Domains, domain) {
			wrong, change = append(wrong, "the domain "+domain+" is not queried"), append(change, "add "+domain+" to discovery.domains")
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("(%s) nothing can be found: %s\n  next: in the values of the chart %s", label, strings.Join(wrong, ", "), strings.Join(change, ", "))
}

// Nothing is the message that nothing is found, and where.
func (s *Places) Nothing(b *Places) string {
	if b == nil {
		return "Nothing is found."
	}
	all := s.all()
	var places []string
	if s.LAN || all && b.LAN {
		places = append(places, "on LANs")
	}
	domains := s.Domains
	if all {
		domains = b.Domains
	}
	switch {
	case len(domains) > 3:
		places = append(places, fmt.Sprintf("in %d domains", len(domains)))
	case len(domains) > 0:
		places = append(places, "in "+strings.Join(domains, ", "))
	}
	text := "Nothing is found " + strings.Join(places, ", and nothing ") + "."
	switch {
	case all && !b.LAN:
		text += " Discovery on LANs is off (discovery.lan.enabled)."
	case all && len(b.Domains) == 0:
		text += " No domain is queried (discovery.domains)."
	}
	return text
}

// Hindered returns those of the agent's problems that hinder discovery at these places.
func (s *Places) Hindered(problems []string, b *Places) []string {
	words := append([]string{"discovery"}, s.Domains...)
	if b != nil {
		words = append(words, b.Domains...)
	}
	return slices.DeleteFunc(problems, func(problem string) bool {
		if strings.Contains(problem, "discovery on its LANs") {
			return !s.all() && !s.LAN
		}
		about := slices.ContainsFunc(words, func(word string) bool { return strings.Contains(problem, word) })
		return !about || !s.all() && len(s.Domains) == 0
	})
}
