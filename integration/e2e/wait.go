package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

// Until polls look for at most limit. look returns what is missing, empty if nothing is; errors
// count as something missing. The error says what was missing last.
func (w *World) Until(ctx context.Context, limit time.Duration, what string, look func(context.Context) (missing string, err error)) error {
	w.Wait(what)
	return eventually.Is(ctx, limit, what, func(ctx context.Context) error {
		missing, err := look(ctx)
		if err == nil && missing != "" {
			return errors.New(missing)
		}
		return err
	})
}

// AgentReady waits until the cluster's agent is ready.
func (s *Side) AgentReady(ctx context.Context, limit time.Duration) error {
	return s.world.Until(ctx, limit, "the agent of "+s.Name+" to be ready", func(ctx context.Context) (string, error) {
		_, err := s.AgentPod(ctx)
		return "", err
	})
}

// NodeCondition reports whether a node is Ready, and why.
func NodeCondition(n *corev1.Node) (ready bool, why string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Reason + ": " + c.Message
		}
	}
	return false, "it has no condition Ready"
}

// VirtualNodeReady waits until the cluster has one virtual node that is Ready, and
// returns it.
func (s *Side) VirtualNodeReady(ctx context.Context, limit time.Duration) (*corev1.Node, error) {
	var node *corev1.Node
	err := s.world.Until(ctx, limit, "the virtual node in "+s.Name+" to be Ready", func(ctx context.Context) (string, error) {
		nodes, err := s.VirtualNodes(ctx)
		if err != nil {
			return "", err
		}
		if len(nodes) != 1 {
			return fmt.Sprintf("%d virtual nodes%s", len(nodes), s.whyNoNode(ctx)), nil
		}
		if ready, why := NodeCondition(&nodes[0]); !ready {
			return "node " + nodes[0].Name + " is not Ready: " + why, nil
		}
		node = &nodes[0]
		return "", nil
	})
	return node, err
}

// whyNoNode returns the messages of the PeeringRequests.
func (s *Side) whyNoNode(ctx context.Context) string {
	var list v1alpha1.PeeringRequestList
	if err := s.Client.List(ctx, &list); err != nil {
		return ""
	}
	var out strings.Builder
	for _, r := range list.Items {
		for _, c := range r.Status.Conditions {
			fmt.Fprintf(&out, "; PeeringRequest %s: %s=%s %s: %s", r.Name, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return out.String()
}

// Condition waits until a condition of the other cluster's ForeignCluster has a
// status.
func (s *Side) Condition(ctx context.Context, limit time.Duration, kind string, want metav1.ConditionStatus) (*metav1.Condition, error) {
	var found *metav1.Condition
	what := fmt.Sprintf("ForeignCluster %s in %s to have %s=%s", s.Other.Name, s.Name, kind, want)
	err := s.world.Until(ctx, limit, what, func(ctx context.Context) (string, error) {
		peer, err := s.Peer(ctx)
		if err != nil {
			return "", err
		}
		if peer == nil {
			return "there is no such ForeignCluster", nil
		}
		c := meta.FindStatusCondition(peer.Status.Conditions, kind)
		switch {
		case c == nil:
			return "it has no such condition", nil
		case c.Status != want:
			return fmt.Sprintf("it is %s: %s: %s", c.Status, c.Reason, c.Message), nil
		}
		found = c
		return "", nil
	})
	return found, err
}

// PodsReady waits until exactly n pods that labels select are ready, and returns
// them.
func (s *Side) PodsReady(ctx context.Context, limit time.Duration, namespace string, labels map[string]string, n int) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	what := fmt.Sprintf("%d pods %s in namespace %s of %s to be ready", n, labelText(labels), namespace, s.Name)
	err := s.world.Until(ctx, limit, what, func(ctx context.Context) (string, error) {
		var err error
		if pods, err = s.Pods(ctx, namespace, labels); err != nil {
			return "", err
		}
		var missing []string
		for i := range pods {
			if !PodReady(&pods[i]) || !pods[i].DeletionTimestamp.IsZero() {
				missing = append(missing, PodText(&pods[i]))
			}
		}
		if len(missing) > 0 {
			return strings.Join(missing, "; "), nil
		}
		if len(pods) != n {
			return fmt.Sprintf("there are %d", len(pods)), nil
		}
		return "", nil
	})
	return pods, err
}

func labelText(labels map[string]string) string {
	var out []string
	for k, v := range labels {
		out = append(out, k+"="+v)
	}
	return strings.Join(out, ",")
}

// PodText is a pod in a few words.
func PodText(p *corev1.Pod) string {
	words := []string{fmt.Sprintf("%s on %q is %s", p.Name, p.Spec.NodeName, p.Status.Phase)}
	if !p.DeletionTimestamp.IsZero() {
		words = append(words, "and being deleted")
	}
	if p.Status.Reason != "" || p.Status.Message != "" {
		words = append(words, fmt.Sprintf("(%s: %s)", p.Status.Reason, p.Status.Message))
	}
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			words = append(words, fmt.Sprintf("%s=%s: %s", c.Type, c.Status, c.Message))
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Message != "" {
			words = append(words, c.State.Waiting.Reason+": "+c.State.Waiting.Message)
		}
	}
	return strings.Join(words, " ")
}
