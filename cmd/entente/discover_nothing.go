package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// browsed is where a cluster looks for others: whether on LANs, and in which domains.
type browsed struct {
	lan     bool
	domains []string
}

// browsedBy reads the flags of the agent's youngest pod: callers who reach the agent may
// list its pods, and the admin API does not tell.
func browsedBy(ctx context.Context, clients kubernetes.Interface, namespace string) (*browsed, error) {
	pods, err := clients.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: client.AgentSelector})
	if err != nil {
		return nil, fmt.Errorf("list the agent's pods: %w", err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("no pod of the agent in namespace %s", namespace)
	}
	youngest := slices.MaxFunc(pods.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	b := &browsed{}
	for _, container := range youngest.Spec.Containers {
		for _, arg := range container.Args {
			b.lan = b.lan || arg == "--discovery-lan"
			if domain, ok := strings.CutPrefix(arg, "--discovery-domain="); ok {
				b.domains = append(b.domains, bareDomain(domain))
			}
		}
	}
	return b, nil
}

// browsedAt is where a cluster looks for others; nil is that the caller may not know.
func (c *cluster) browsedAt(ctx context.Context) *browsed {
	if c.browsed == nil {
		return nil
	}
	b, err := c.browsed(ctx)
	if err != nil {
		return nil
	}
	return b
}

// bareDomain is a domain as sightings have it.
func bareDomain(domain string) string { return strings.TrimSuffix(strings.ToLower(domain), ".") }

// off is an error if clusters are not looked for where they are asked for.
func (s *sources) off(label string, b *browsed) error {
	if b == nil {
		return nil
	}
	var wrong, change []string
	if !s.lan && len(s.domains) == 0 && !b.lan && len(b.domains) == 0 {
		wrong, change = []string{"discovery is off"}, []string{"set discovery.lan.enabled or discovery.domains"}
	}
	if s.lan && !b.lan {
		wrong, change = append(wrong, "no LAN is listened to"), append(change, "set discovery.lan.enabled")
	}
	for _, domain := range s.domains {
		if !slices.Contains(b.domains, domain) {
			wrong, change = append(wrong, "the domain "+domain+" is not asked"), append(change, "add "+domain+" to discovery.domains")
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("(%s) nothing can be found: %s\n  next: in the values of the chart %s", label, strings.Join(wrong, ", "), strings.Join(change, ", "))
}

// nothing says where nothing is found.
func (s *sources) nothing(b *browsed) string {
	if b == nil {
		return "Nothing is found."
	}
	all := !s.lan && len(s.domains) == 0
	var places []string
	if s.lan || all && b.lan {
		places = append(places, "on LANs")
	}
	domains := s.domains
	if all {
		domains = b.domains
	}
	switch {
	case len(domains) > 3:
		places = append(places, fmt.Sprintf("in %d domains", len(domains)))
	case len(domains) > 0:
		places = append(places, "in "+strings.Join(domains, ", "))
	}
	text := "Nothing is found " + strings.Join(places, ", and nothing ") + "."
	switch {
	case all && !b.lan:
		text += " No LAN is listened to (discovery.lan.enabled)."
	case all && len(b.domains) == 0:
		text += " No domain is asked (discovery.domains)."
	}
	return text
}

// hindered is what is wrong with discovery in what was asked for, of all that the agent
// says is wrong.
func (s *sources) hindered(ctx context.Context, c *cluster, b *browsed) ([]string, error) {
	info, err := c.self(ctx)
	if err != nil {
		return nil, err
	}
	words := append([]string{"discovery"}, s.domains...)
	if b != nil {
		words = append(words, b.domains...)
	}
	all := !s.lan && len(s.domains) == 0
	return slices.DeleteFunc(format.Problems(info, nil), func(problem string) bool {
		if strings.Contains(problem, "discovery on its LANs") {
			return !all && !s.lan
		}
		about := slices.ContainsFunc(words, func(word string) bool { return strings.Contains(problem, word) })
		return !about || !all && len(s.domains) == 0
	}), nil
}

// noneFound says why nothing is found: it is not looked for, something is wrong, or
// nobody is there.
func (r *run) noneFound(ctx context.Context, from *sources) error {
	b := r.browsedAt(ctx)
	if err := from.off(r.label, b); err != nil {
		return err
	}
	wrong, err := from.hindered(ctx, r.cluster, b)
	if err != nil {
		return err
	}
	if err := printList[*ententev1.Peer](r, nil, from.nothing(b), "Join a cluster that you know of:\n  entente join HOST:PORT", nil); err != nil {
		return err
	}
	return exit.Problems(wrong)
}
