package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Knows returns this cluster's ForeignCluster of another one; nil without one.
func (s *Side) Knows(ctx context.Context, other *Side) (*v1alpha1.ForeignCluster, error) {
	id, err := other.ID(ctx)
	if err != nil {
		return nil, err
	}
	return s.KnowsID(ctx, id)
}

// KnowsID returns this cluster's ForeignCluster with an ID; nil without one.
func (s *Side) KnowsID(ctx context.Context, id string) (*v1alpha1.ForeignCluster, error) {
	var list v1alpha1.ForeignClusterList
	if err := s.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list foreign clusters of %s: %w", s.Name, err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.ClusterID == id {
			return &list.Items[i], nil
		}
	}
	return nil, nil //nolint:nilnil // not known is an answer
}

// ContractsWith are the contracts in force with another cluster, by this one's role.
func (s *Side) ContractsWith(ctx context.Context, other *Side) (map[v1alpha1.ContractRole]v1alpha1.Contract, error) {
	id, err := other.ID(ctx)
	if err != nil {
		return nil, err
	}
	return s.ContractsWithID(ctx, id)
}

// ContractsWithID are the contracts in force with the cluster that has an ID, by this
// one's role.
func (s *Side) ContractsWithID(ctx context.Context, id string) (map[v1alpha1.ContractRole]v1alpha1.Contract, error) {
	out := map[v1alpha1.ContractRole]v1alpha1.Contract{}
	for _, role := range []v1alpha1.ContractRole{v1alpha1.ContractConsumer, v1alpha1.ContractProvider} {
		all, err := s.Contracts(ctx, role)
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			if c.Spec.PeerID == id && c.Status.Phase == "Active" {
				out[role] = c
			}
		}
	}
	return out, nil
}

// Pair is two clusters.
type Pair [2]*Side

// Ways are the two directions between a pair.
func (p Pair) Ways() []Pair { return []Pair{p, {p[1], p[0]}} }

// Hop is one of the things that have to be so for two clusters to be peered in both
// directions, each in its turn.
type Hop struct {
	Name string
	// missing says what one cluster does not have of another one.
	missing func(ctx context.Context, s, other *Side) (string, error)
}

func hops() []Hop {
	condition := func(kind string) func(context.Context, *Side, *Side) (string, error) {
		return func(ctx context.Context, s, other *Side) (string, error) {
			fc, err := s.Knows(ctx, other)
			if err != nil || fc == nil {
				return "it does not know it", err
			}
			c := meta.FindStatusCondition(fc.Status.Conditions, kind)
			switch {
			case c == nil:
				return "it has no condition " + kind, nil
			case c.Status != metav1.ConditionTrue:
				return fmt.Sprintf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message), nil
			}
			return "", nil
		}
	}
	return []Hop{
		{"found", func(ctx context.Context, s, other *Side) (string, error) {
			fc, err := s.Knows(ctx, other)
			if err == nil && fc == nil {
				return "it does not know it", nil
			}
			return "", err
		}},
		{"trusted", condition(v1alpha1.ConditionTrusted)},
		{"connected", condition(v1alpha1.ConditionConnected)},
		{"contracts both ways", func(ctx context.Context, s, other *Side) (string, error) {
			have, err := s.ContractsWith(ctx, other)
			if err == nil && len(have) != 2 {
				return fmt.Sprintf("contracts are in force as %v, want one in each role", slices.Sorted(maps.Keys(have))), nil
			}
			return "", err
		}},
		{"traffic passes", condition(v1alpha1.ConditionNetwork)},
		{"virtual nodes are ready", condition(v1alpha1.ConditionOffloading)},
	}
}

// BothWays waits until pairs of clusters are peered in both directions, and says when
// each hop was there for all of them.
func (w *World) BothWays(ctx context.Context, limit time.Duration, there func(hop string), pairs ...Pair) error {
	for _, h := range hops() {
		if err := w.Until(ctx, limit, h.Name+", in both directions", func(ctx context.Context) (string, error) {
			for _, p := range pairs {
				for _, way := range p.Ways() {
					missing, err := h.missing(ctx, way[0], way[1])
					if err != nil {
						return "", fmt.Errorf("%s, of %s: %w", way[0].Name, way[1].Name, err)
					}
					if missing != "" {
						return fmt.Sprintf("%s, of %s: %s", way[0].Name, way[1].Name, missing), nil
					}
				}
			}
			return "", nil
		}); err != nil {
			return err
		}
		there(h.Name)
	}
	return nil
}

// AgentStarted waits until the cluster's agent is ready, and returns when its container
// began to run: to the second, rounded down.
func (s *Side) AgentStarted(ctx context.Context, limit time.Duration) (time.Time, error) {
	var began time.Time
	err := s.world.Until(ctx, limit, "the agent of "+s.Name+" to be ready", func(ctx context.Context) (string, error) {
		pod, err := s.AgentPod(ctx)
		if err != nil {
			return "", err
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running != nil {
				began = c.State.Running.StartedAt.Time
				return "", nil
			}
		}
		return "no container of pod " + pod.Name + " runs", nil
	})
	return began, err
}
