package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/client"
)

// The reasons of findings about the agent: docs/troubleshooting.md explains each.
const (
	reasonAgentNotRunning = "AgentNotRunning"
	reasonAgentNotChecked = "AgentNotChecked"
)

// agentFault returns client.ErrNoAgent if no pod of the agent is ready in a namespace, and another error if that is not known.
func agentFault(ctx context.Context, c kubernetes.Interface, namespace string) error {
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: client.AgentSelector})
	if err != nil {
		return fmt.Errorf("list the agent's pods in %s: %w", namespace, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if ready && pod.DeletionTimestamp.IsZero() {
			return nil
		}
	}
	return fmt.Errorf("%w in namespace %s is ready", client.ErrNoAgent, namespace)
}

// agentsElsewhere returns the namespaces that have pods of an agent, if one has none; none if it may not list them.
func agentsElsewhere(ctx context.Context, c kubernetes.Interface, namespace string) []string {
	pods, err := c.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: client.AgentSelector})
	if err != nil {
		return nil
	}
	var found []string
	for i := range pods.Items {
		if pods.Items[i].Namespace == namespace {
			return nil
		}
		found = append(found, pods.Items[i].Namespace)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// agentFindings returns that no agent runs, or that this is not known.
func agentFindings(is Report) []Finding {
	switch {
	case is.Agent == nil:
		return nil
	case errors.Is(is.Agent, client.ErrNoAgent) && len(is.Elsewhere) > 0:
		return []Finding{{
			Area: AreaPeers, Reason: reasonAgentNotRunning, Severity: Error,
			Message: fmt.Sprintf("%s, but pods of an agent are in namespace %s", is.Agent, strings.Join(is.Elsewhere, " and ")),
			Remedy:  "name the namespace in each command: --entente-namespace " + is.Elsewhere[0],
		}}
	case errors.Is(is.Agent, client.ErrNoAgent):
		return []Finding{{
			Area: AreaPeers, Reason: reasonAgentNotRunning, Severity: Error,
			Message: is.Agent.Error() + ", so virtual nodes are or become NotReady, nothing is agreed or renewed, and what is said of peers may be out of date",
			Remedy: fmt.Sprintf("see why: kubectl -n %s describe deployment,pods -l %s; if it has no replicas: kubectl -n %s scale deployment %s --replicas=1; an installation in another namespace is named by --entente-namespace",
				is.Namespace, client.AgentSelector, is.Namespace, client.AgentService),
		}}
	}
	return []Finding{{
		Area: AreaPeers, Reason: reasonAgentNotChecked, Severity: Info,
		Message: "it is not known whether the agent runs: " + strings.TrimSuffix(is.Agent.Error(), "."),
		Remedy:  "ask an administrator to bind the Role " + client.CLIRole + " in " + is.Namespace + ", or to run this",
	}}
}
