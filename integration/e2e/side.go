package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/lab"
)

// Side is one cluster, with an administrator's access.
type Side struct {
	// Name is the cluster's own name.
	Name string
	// Plan has the lab's names and addresses; its node is Plan.Control().
	Plan lab.ClusterPlan
	// Kubeconfig is the path of an administrator's kubeconfig.
	Kubeconfig string
	// REST, Client and Kube reach the API server.
	REST   *rest.Config
	Client ctrlclient.WithWatch
	Kube   kubernetes.Interface
	// Other is the other cluster; home for further ones.
	Other *Side
	// Values are Helm values for this cluster alone, as for --set.
	Values []string

	world   *World
	kubectl string
}

// Scheme is the kinds of Kubernetes and of Entente.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(scheme.AddToScheme(s), v1alpha1.AddToScheme(s))
}

func openSide(w *World, name string, plan lab.ClusterPlan, kubectl string) (*Side, error) {
	c, err := w.Lab.Cluster(plan.Name)
	if err != nil {
		return nil, err
	}
	s := &Side{Name: name, Plan: plan, Kubeconfig: c.Kubeconfig, REST: c.RESTConfig(), world: w, kubectl: kubectl}
	// Deprecated resources are listed, too, without warnings.
	s.REST.WarningHandler = rest.NoWarnings{}
	kinds, err := Scheme()
	if err != nil {
		return nil, err
	}
	if s.Client, err = ctrlclient.NewWithWatch(s.REST, ctrlclient.Options{Scheme: kinds}); err != nil {
		return nil, fmt.Errorf("reach cluster %s: %w", name, err)
	}
	if s.Kube, err = kubernetes.NewForConfig(s.REST); err != nil {
		return nil, fmt.Errorf("reach cluster %s: %w", name, err)
	}
	return s, nil
}

// Node is the name of the cluster's own node.
func (s *Side) Node() string { return s.Plan.Control().Name }

// CommandError is a command that did not end well.
type CommandError struct {
	// Line is the command as it could be typed.
	Line string
	// Output is all that it printed, Code its exit code, -1 if it did not get
	// that far.
	Output string
	Code   int
	Err    error
}

// Error implements error.
func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %v\n%s", e.Line, e.Err, squeeze(e.Output))
}

// squeeze writes a line that repeats itself once, with how often.
func squeeze(text string) string {
	var out []string
	times := 0
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		times++
		if i+1 < len(lines) && lines[i+1] == line {
			continue
		}
		if times > 1 {
			line += fmt.Sprintf(" (%d times)", times)
		}
		out, times = append(out, line), 0
	}
	return strings.Join(out, "\n")
}

// Unwrap returns why it did not end well.
func (e *CommandError) Unwrap() error { return e.Err }

// Run runs a command against the cluster and returns its standard output. The
// error is a *CommandError.
func (s *Side) Run(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "NO_COLOR=1",
		"HELM_CACHE_HOME="+s.world.Root+"/.build/helm", "HELM_CONFIG_HOME="+s.world.Root+"/.build/helm", "HELM_DATA_HOME="+s.world.Root+"/.build/helm")
	return capture(cmd, Line(path, args...), watcher(ctx))
}

// watching is the key of who watches commands in a context.
type watching struct{}

// Watching returns a context whose commands write their standard output to w, too,
// while they run.
func Watching(ctx context.Context, w io.Writer) context.Context {
	return context.WithValue(ctx, watching{}, w)
}

// Output is the output of a command so far; see Watching.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String implements fmt.Stringer.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func watcher(ctx context.Context) io.Writer {
	if w, ok := ctx.Value(watching{}).(io.Writer); ok {
		return w
	}
	return io.Discard
}

// capture runs a command. Its standard output goes to watch, too.
func capture(cmd *exec.Cmd, line string, watch io.Writer) (string, error) {
	var out, all bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, &all, watch), &all
	// A child that outlives its parent must not keep this waiting.
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), &CommandError{Line: line, Output: all.String(), Code: cmd.ProcessState.ExitCode(), Err: err}
	}
	return out.String(), nil
}

// Line is a command as it could be typed.
func Line(path string, args ...string) string {
	words := []string{path[strings.LastIndex(path, "/")+1:]}
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " '\"{}$|&;<>*?#\n") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// Kubectl runs kubectl.
func (s *Side) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.Run(ctx, s.kubectl, args...)
}

// Helm runs helm.
func (s *Side) Helm(ctx context.Context, args ...string) (string, error) {
	return s.Run(ctx, s.world.Helm, args...)
}

// Entente runs the CLI.
func (s *Side) Entente(ctx context.Context, args ...string) (string, error) {
	return s.Run(ctx, s.world.CLI, args...)
}

// OnNode runs a command of this machine in the network namespace of the
// cluster's node.
func (s *Side) OnNode(ctx context.Context, argv ...string) (string, error) {
	return s.world.On(ctx, s.Node(), argv...)
}

// On is OnNode for any node, or "internet".
func (w *World) On(ctx context.Context, node string, argv ...string) (string, error) {
	cmd, err := w.Lab.Exec(ctx, node, false, argv...)
	if err != nil {
		return "", err
	}
	return capture(cmd, Line(argv[0], argv[1:]...), watcher(ctx))
}

// InPod runs a command in a pod, through the API server, as `kubectl exec` does.
func (s *Side) InPod(ctx context.Context, namespace, pod string, argv ...string) (string, error) {
	return s.Kubectl(ctx, append([]string{"exec", "-n", namespace, pod, "--"}, argv...)...)
}

// Peer returns this cluster's ForeignCluster of the other one; nil without one.
func (s *Side) Peer(ctx context.Context) (*v1alpha1.ForeignCluster, error) {
	var list v1alpha1.ForeignClusterList
	if err := s.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list foreign clusters of %s: %w", s.Name, err)
	}
	for i := range list.Items {
		if list.Items[i].Name == s.Other.Name {
			return &list.Items[i], nil
		}
	}
	return nil, nil //nolint:nilnil // not known is an answer
}

// ID is the cluster's ID, which it has once the chart is installed.
func (s *Side) ID(ctx context.Context) (string, error) {
	var list v1alpha1.FabricNodeList
	if err := s.Client.List(ctx, &list); err != nil {
		return "", fmt.Errorf("list fabric nodes of %s: %w", s.Name, err)
	}
	if len(list.Items) == 0 {
		return "", fmt.Errorf("no node of %s has a fabric yet", s.Name)
	}
	return list.Items[0].Spec.ClusterID, nil
}

// Contracts are the cluster's contracts in a role.
func (s *Side) Contracts(ctx context.Context, role v1alpha1.ContractRole) ([]v1alpha1.Contract, error) {
	var list v1alpha1.ContractList
	if err := s.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list contracts of %s: %w", s.Name, err)
	}
	var out []v1alpha1.Contract
	for _, c := range list.Items {
		if c.Spec.Role == role {
			out = append(out, c)
		}
	}
	return out, nil
}

// VirtualNodes returns the cluster's virtual nodes.
func (s *Side) VirtualNodes(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	if err := s.Client.List(ctx, &list, ctrlclient.MatchingLabels{v1alpha1.LabelVirtualNode: "true"}); err != nil {
		return nil, fmt.Errorf("list virtual nodes of %s: %w", s.Name, err)
	}
	return list.Items, nil
}

// Pods are the pods of a namespace that labels select.
func (s *Side) Pods(ctx context.Context, namespace string, labels map[string]string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := s.Client.List(ctx, &list, ctrlclient.InNamespace(namespace), ctrlclient.MatchingLabels(labels)); err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", s.Name, err)
	}
	return list.Items, nil
}

// AgentPods are the agent's pods.
func (s *Side) AgentPods(ctx context.Context) ([]corev1.Pod, error) {
	return s.Pods(ctx, SystemNamespace, map[string]string{"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "agent"})
}

// AgentPod returns the pod of the agent that leads and is ready, or an error that says why no agent
// does.
func (s *Side) AgentPod(ctx context.Context) (*corev1.Pod, error) {
	pods, err := s.AgentPods(ctx)
	if err != nil {
		return nil, err
	}
	why := "there is no pod"
	for i := range pods {
		leads := pods[i].Labels[v1alpha1.LabelLeader] == "true"
		if pods[i].DeletionTimestamp.IsZero() && PodReady(&pods[i]) && leads {
			return &pods[i], nil
		}
		why = fmt.Sprintf("pod %s is %s, ready: %v, leads: %v", pods[i].Name, pods[i].Status.Phase, PodReady(&pods[i]), leads)
	}
	return nil, fmt.Errorf("no agent of %s is ready: %s", s.Name, why)
}

// FabricPod is the fabric's pod on the cluster's node.
func (s *Side) FabricPod(ctx context.Context) (*corev1.Pod, error) {
	pods, err := s.Pods(ctx, SystemNamespace, map[string]string{"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "fabric"})
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].DeletionTimestamp.IsZero() && pods[i].Spec.NodeName == s.Node() {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("no fabric on node %s", s.Node())
}

// PodReady reports whether a pod is ready.
func PodReady(p *corev1.Pod) bool {
	c := PodReadiness(p)
	return c != nil && c.Status == corev1.ConditionTrue
}

// PodReadiness returns a pod's condition Ready; nil without one.
func PodReadiness(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReady {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// ReadyEndpoints are the addresses of a Service's endpoints that are ready.
func (s *Side) ReadyEndpoints(ctx context.Context, namespace, service string) ([]string, error) {
	var list discoveryv1.EndpointSliceList
	err := s.Client.List(ctx, &list, ctrlclient.InNamespace(namespace), ctrlclient.MatchingLabels{discoveryv1.LabelServiceName: service})
	if err != nil {
		return nil, fmt.Errorf("list endpoint slices of %s: %w", s.Name, err)
	}
	var out []string
	for i := range list.Items {
		for _, e := range list.Items[i].Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				out = append(out, e.Addresses...)
			}
		}
	}
	return out, nil
}

// Restarts is how often the containers of a pod were started again.
func Restarts(p *corev1.Pod) int {
	n := 0
	for _, c := range p.Status.ContainerStatuses {
		n += int(c.RestartCount)
	}
	return n
}

// CreateNamespace makes a namespace, unless it is there.
func (s *Side) CreateNamespace(ctx context.Context, name string) error {
	err := s.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return ctrlclient.IgnoreAlreadyExists(err)
}
