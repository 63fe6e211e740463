package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Limits of waiting for what takes a moment on two busy cores.
const (
	// Soon is for what an agent does at once.
	Soon = time.Minute
	// Restarted is for what waits for an agent that has to start, and to get the
	// lease of one that was killed.
	Restarted = 150 * time.Second
	// Scheduled is for pods to run.
	Scheduled = 3 * time.Minute
)

var tokenText = regexp.MustCompile(`ent[0-9]+\.[A-Za-z0-9_.-]+`)

// CreateToken makes a join token with the CLI.
func (s *Side) CreateToken(ctx context.Context, args ...string) (string, error) {
	out, err := s.Entente(ctx, append([]string{"token", "create"}, args...)...)
	if err != nil {
		return "", err
	}
	token := tokenText.FindString(out)
	if token == "" {
		return "", fmt.Errorf("`entente token create` printed no token:\n%s", out)
	}
	return token, nil
}

// Join makes home and abroad trust each other, by a token of abroad, unless they
// do already.
func (w *World) Join(ctx context.Context) error { return w.JoinBy(ctx, w.Abroad) }

// JoinBy is Join by a token of the given cluster, which the other redeems.
func (w *World) JoinBy(ctx context.Context, issuer *Side) error {
	known, err := issuer.Other.Peer(ctx)
	if err != nil {
		return err
	}
	if known == nil || known.Spec.TrustBundle == "" {
		token, err := issuer.CreateToken(ctx)
		if err != nil {
			return err
		}
		if _, err := issuer.Other.Entente(ctx, "join", token); err != nil {
			return err
		}
	}
	return w.Each(ctx, func(ctx context.Context, s *Side) error {
		_, err := s.Condition(ctx, Restarted, v1alpha1.ConditionConnected, metav1.ConditionTrue)
		return err
	})
}

// Peer makes home use resources of abroad, joining first if need be, and waits
// until traffic passes and the virtual node, which it returns, is Ready.
func (w *World) Peer(ctx context.Context) (*corev1.Node, error) {
	if err := w.Join(ctx); err != nil {
		return nil, err
	}
	nodes, err := w.Home.VirtualNodes(ctx)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		if _, err := w.Home.Entente(ctx, "peer", w.Abroad.Name); err != nil {
			return nil, err
		}
	}
	return w.Peered(ctx, Restarted)
}

// Peered waits until the peering works: the node is Ready and both sides report that traffic
// passes.
func (w *World) Peered(ctx context.Context, limit time.Duration) (*corev1.Node, error) {
	node, err := w.Home.VirtualNodeReady(ctx, limit)
	if err != nil {
		return nil, err
	}
	return node, w.Each(ctx, func(ctx context.Context, s *Side) error {
		_, err := s.Condition(ctx, limit, v1alpha1.ConditionNetwork, metav1.ConditionTrue)
		return err
	})
}

// Offload lets the pods of a namespace at home, which it makes, run abroad.
func (w *World) Offload(ctx context.Context, namespace string, args ...string) error {
	if err := w.Home.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if _, err := w.Home.Entente(ctx, append([]string{"offload", "namespace", namespace}, args...)...); err != nil {
		return err
	}
	return w.Offloaded(ctx, namespace)
}

// Offloaded waits until a namespace is open for offloading.
func (w *World) Offloaded(ctx context.Context, namespace string) error {
	return w.Until(ctx, Soon, "namespace "+namespace+" to be offloaded", func(ctx context.Context) (string, error) {
		var ns corev1.Namespace
		if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: namespace}, &ns); err != nil {
			return "", err
		}
		if ns.Labels[v1alpha1.LabelOffloading] != "enabled" {
			return "it has no label " + v1alpha1.LabelOffloading, nil
		}
		return "", nil
	})
}

// RemoteNamespace is the name of a namespace of home abroad.
func (w *World) RemoteNamespace(ctx context.Context, namespace string) (string, error) {
	var list corev1.NamespaceList
	if err := w.Abroad.Client.List(ctx, &list, ctrlclient.MatchingLabels{
		v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelOriginNamespace: namespace,
	}); err != nil {
		return "", fmt.Errorf("list namespaces of %s: %w", w.Abroad.Name, err)
	}
	var names []string
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp.IsZero() {
			names = append(names, list.Items[i].Name)
		}
	}
	if len(names) != 1 {
		return "", fmt.Errorf("namespaces %q of %s belong to %s, want one", names, w.Abroad.Name, namespace)
	}
	return names[0], nil
}

// DeleteNamespace deletes a namespace at home and waits until it is gone on both
// sides.
func (w *World) DeleteNamespace(ctx context.Context, namespace string) error {
	err := w.Home.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	if ctrlclient.IgnoreNotFound(err) != nil {
		return err
	}
	return w.Until(ctx, Scheduled, "namespace "+namespace+" to be gone", func(ctx context.Context) (string, error) {
		var ns corev1.Namespace
		err := w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: namespace}, &ns)
		switch {
		case err == nil:
			return fmt.Sprintf("it is %s at home: %s", ns.Status.Phase, namespaceConditions(&ns)), nil
		case !apierrors.IsNotFound(err):
			return "", err
		}
		var list corev1.NamespaceList
		if err := w.Abroad.Client.List(ctx, &list, ctrlclient.MatchingLabels{v1alpha1.LabelOriginNamespace: namespace}); err != nil {
			return "", err
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("%s is %s abroad: %s", list.Items[0].Name, list.Items[0].Status.Phase, namespaceConditions(&list.Items[0])), nil
		}
		return "", nil
	})
}

func namespaceConditions(ns *corev1.Namespace) string {
	var out []string
	for _, c := range ns.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			out = append(out, c.Message)
		}
	}
	return strings.Join(out, "; ")
}

// Unpeer ends the peering with the CLI, forgets the peer on both sides, and waits until all of it
// is gone.
func (w *World) Unpeer(ctx context.Context) error {
	known, err := w.Home.Peer(ctx)
	if err != nil {
		return err
	}
	if known != nil {
		if _, err := w.Home.Entente(ctx, "unpeer", w.Abroad.Name, "--now", "--forget", "--yes"); err != nil {
			return err
		}
	}
	if known, err = w.Abroad.Peer(ctx); err != nil {
		return err
	}
	if known != nil {
		if _, err := w.Abroad.Entente(ctx, "unpeer", w.Home.Name, "--now", "--forget", "--yes"); err != nil {
			return err
		}
	}
	return w.Each(ctx, func(ctx context.Context, s *Side) error { return s.Unpeered(ctx, Scheduled) })
}

// Unpeered waits until a cluster has no objects of any peering.
func (s *Side) Unpeered(ctx context.Context, limit time.Duration) error {
	return s.world.Until(ctx, limit, s.Name+" to have no objects of the peering", func(ctx context.Context) (string, error) {
		lists := []ctrlclient.ObjectList{
			&v1alpha1.ForeignClusterList{}, &v1alpha1.PeeringRequestList{}, &v1alpha1.TunnelList{}, &v1alpha1.OffloadedPodList{},
		}
		var left []string
		var contracts v1alpha1.ContractList
		if err := s.Client.List(ctx, &contracts); err != nil {
			return "", fmt.Errorf("list contracts of %s: %w", s.Name, err)
		}
		for i := range contracts.Items {
			// One that cost something is kept when it is over; nothing stands because of it.
			if c := &contracts.Items[i]; c.Status.Phase != peering.PhaseClosed.String() || len(c.Finalizers) > 0 {
				left = append(left, "contract "+c.Name)
			}
		}
		for _, list := range lists {
			names, err := s.names(ctx, list)
			if err != nil {
				return "", err
			}
			left = append(left, names...)
		}
		nodes, err := s.VirtualNodes(ctx)
		if err != nil {
			return "", err
		}
		for i := range nodes {
			left = append(left, "node "+nodes[i].Name)
		}
		slices.Sort(left)
		return strings.Join(left, ", "), nil
	})
}

// names lists objects as "kind name".
func (s *Side) names(ctx context.Context, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) ([]string, error) {
	if err := s.Client.List(ctx, list, opts...); err != nil {
		return nil, fmt.Errorf("list %T of %s: %w", list, s.Name, err)
	}
	objects, err := extract(list)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, o := range objects {
		kind := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", o), "*"), "List")
		out = append(out, kind[strings.LastIndex(kind, ".")+1:]+" "+strings.TrimPrefix(ctrlclient.ObjectKeyFromObject(o).String(), "/"))
	}
	return out, nil
}

// Ended checks that a command failed, and that what it printed has all of the
// words.
func Ended(err error, words ...string) error {
	var failed *CommandError
	if err == nil {
		return fmt.Errorf("want a failure that says %q, got none", words)
	}
	if !errors.As(err, &failed) {
		return fmt.Errorf("want a failure that says %q, have: %w", words, err)
	}
	for _, word := range words {
		if !strings.Contains(failed.Output, word) {
			return fmt.Errorf("%s does not say %q, but:\n%s", failed.Line, word, failed.Output)
		}
	}
	return nil
}

// Alias is the address under which a cluster that knows peer reaches one of its
// addresses.
func Alias(peer *v1alpha1.ForeignCluster, address string) (string, error) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return "", err
	}
	for _, b := range peer.Status.AliasBlocks {
		block, err := netip.ParsePrefix(b.Alias)
		if err != nil {
			return "", err
		}
		alias := block.Addr()
		for _, one := range b.Addresses {
			if one == address {
				return alias.String(), nil
			}
			alias = alias.Next()
		}
	}
	for _, m := range peer.Status.Aliases {
		prefix, err := netip.ParsePrefix(m.Prefix)
		if err != nil {
			return "", err
		}
		alias, err := netip.ParsePrefix(m.Alias)
		if err != nil {
			return "", err
		}
		if !prefix.Contains(a) || prefix.Bits() != alias.Bits() || prefix.Addr().BitLen() != alias.Addr().BitLen() {
			continue
		}
		from, to := a.AsSlice(), alias.Masked().Addr().AsSlice()
		for i := range from {
			bits := min(max(prefix.Bits()-8*i, 0), 8)
			host := byte(0xff >> bits)
			to[i] |= from[i] & host
		}
		known, _ := netip.AddrFromSlice(to)
		return known.String(), nil
	}
	return "", fmt.Errorf("no alias of %s has %s", peer.Name, address)
}
