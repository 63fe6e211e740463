// Package cleanup removes Entente from a cluster before it is uninstalled.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/dnsupdate"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/store"
)

// Config is the configuration of Run.
type Config struct {
	// Kubernetes is how to reach the API server. Required.
	Kubernetes *rest.Config
	// Namespace is the namespace of the install. Required.
	Namespace string
	// Timeout bounds the orderly part, for which the agent still runs.
	Timeout time.Duration
	// KeepIdentity leaves the cluster's identity for a later install.
	KeepIdentity bool
	// Out gets one line for each step. Required.
	Out io.Writer
}

const (
	agentDeployment = "entente-agent"
	cleanupPoll     = time.Second
	fabricCleanWait = 30 * time.Second
	agentGoneWait   = 45 * time.Second
	// agentActs is the time within which a running agent does some of what it is asked, and agentBack the time
	// within which one that was lost is back.
	agentActs   = 45 * time.Second
	agentBack   = 30 * time.Second
	fabricAlive = 2 * time.Minute
)

// Run ends all peerings and removes everything of Entente from a cluster except for what Helm removes itself: first
// in order, by the running agent, then by force what is left. It waits for no peer. Its error lists what is left.
func Run(ctx context.Context, cfg Config) error {
	c, err := client.New(cfg.Kubernetes, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	w := &cleanup{cfg: cfg, client: c}
	if w.agentLives(ctx) {
		w.step("ending all peerings", w.endPeerings(ctx))
		w.step("waiting until the agent took everything down", w.await(ctx, cfg.Timeout, w.takenDown()))
	}
	w.step("removing tunnels", w.removeAll(ctx, &v1alpha1.TunnelList{}))
	w.step("waiting until the nodes are clean", w.await(ctx, fabricCleanWait, w.fabricClean))
	w.step("stopping the agent", w.stopAgent(ctx))
	w.step("removing this cluster from DNS", dnsupdate.Remove(ctx, w.client, cfg.Namespace))
	w.step("removing what is left", w.force(ctx))
	return w.conclude(ctx)
}

// conclude prints what is left that has to stay, and returns an error that lists what should not.
func (w *cleanup) conclude(ctx context.Context) error {
	left, err := w.left(ctx)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s; remove them by hand, or run this again", strings.Join(left, ", "))
	}
	moved, err := w.moved(ctx)
	if err != nil {
		return err
	}
	if len(moved) == 0 {
		fmt.Fprintln(w.cfg.Out, "nothing is left")
		return nil
	}
	fmt.Fprintln(w.cfg.Out, "nothing is left but unfinished moves of volumes. To return these claims to their old volumes, which works without Entente, too:")
	for _, claim := range moved {
		fmt.Fprintf(w.cfg.Out, "  entente move volume %s --namespace %s --abort\n", claim.Name, claim.Namespace)
	}
	return nil
}

// moved returns the claims whose volumes are being moved. Removing their finalizer would delete them.
func (w *cleanup) moved(ctx context.Context) (claims []client.ObjectKey, err error) {
	err = w.each(ctx, &corev1.PersistentVolumeClaimList{}, func(o client.Object) error {
		if slices.Contains(o.GetFinalizers(), v1alpha1.FinalizerMove) {
			claims = append(claims, client.ObjectKeyFromObject(o))
		}
		return nil
	})
	return claims, err
}

type cleanup struct {
	cfg    Config
	client client.Client
}

// step prints the outcome of a step. A failed step does not keep the next from running: what matters is what is
// left in the end.
func (w *cleanup) step(what string, err error) {
	if err != nil {
		fmt.Fprintf(w.cfg.Out, "%s: %v\n", what, err)
		return
	}
	fmt.Fprintf(w.cfg.Out, "%s: done\n", what)
}

func (w *cleanup) agentLives(ctx context.Context) bool {
	var d appsv1.Deployment
	err := w.client.Get(ctx, client.ObjectKey{Namespace: w.cfg.Namespace, Name: agentDeployment}, &d)
	return err == nil && d.Status.ReadyReplicas > 0
}

// asks returns lists of the kinds by which users ask for something; deleting their objects makes the agent remove
// the rest.
func asks() []client.ObjectList {
	return []client.ObjectList{&v1alpha1.NamespaceOffloadingList{}, &v1alpha1.ImportedServiceList{}, &v1alpha1.PeeringRequestList{}, &v1alpha1.ForeignClusterList{}}
}

// kinds returns lists of all our kinds.
func kinds() []client.ObjectList {
	return append(asks(), &v1alpha1.ContractList{}, &v1alpha1.OffloadedPodList{}, &v1alpha1.TunnelList{}, &v1alpha1.FabricNodeList{}, &v1alpha1.NodeDiscoveryList{})
}

func (w *cleanup) endPeerings(ctx context.Context) error {
	// Policies by which the agent would peer again are deleted first.
	err := w.each(ctx, &v1alpha1.PeeringPolicyList{}, func(o client.Object) error {
		if o.(*v1alpha1.PeeringPolicy).Spec.Automatic == nil {
			return nil
		}
		return w.remove(ctx, o)
	})
	if err != nil {
		return err
	}
	if err := w.each(ctx, &v1alpha1.ContractList{}, w.patch(ctx, `{"spec":{"termination":"Now"}}`)); err != nil {
		return err
	}
	// Closed contracts are kept as records of what they cost, until they are deleted.
	for _, list := range append(asks(), &v1alpha1.ContractList{}) {
		if err := w.removeAll(ctx, list); err != nil {
			return err
		}
	}
	return nil
}

// list returns the objects of a kind; none if the cluster does not have the kind.
func (w *cleanup) list(ctx context.Context, list client.ObjectList, opts ...client.ListOption) ([]client.Object, error) {
	err := w.client.List(ctx, list, opts...)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", list, err)
	}
	var out []client.Object
	err = meta.EachListItem(list, func(item runtime.Object) error {
		out = append(out, item.(client.Object))
		return nil
	})
	return out, err
}

// each calls do with each object of a kind. It ignores objects that are gone meanwhile, and a failure does not keep
// it from the others.
func (w *cleanup) each(ctx context.Context, list client.ObjectList, do func(client.Object) error, opts ...client.ListOption) error {
	found, err := w.list(ctx, list, opts...)
	errs := []error{err}
	for _, o := range found {
		if err := do(o); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("%T %s: %w", o, client.ObjectKeyFromObject(o), err))
		}
	}
	return errors.Join(errs...)
}

func (w *cleanup) patch(ctx context.Context, patch string) func(client.Object) error {
	return func(o client.Object) error {
		return w.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
}

func (w *cleanup) remove(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return w.client.Delete(ctx, o, append(opts, client.Preconditions{UID: new(o.GetUID())})...)
}

func (w *cleanup) removeAll(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return w.each(ctx, list, func(o client.Object) error { return w.remove(ctx, o) }, opts...)
}

// hopeless is why waiting any longer for the agent is useless.
type hopeless struct{ why, waiting string }

func (h *hopeless) Error() string {
	return h.why + "; what it left is removed without it: " + h.waiting
}

func (w *cleanup) await(ctx context.Context, limit time.Duration, done func(context.Context) (string, error)) error {
	var waiting string
	var err error
	if wait.PollUntilContextTimeout(ctx, cleanupPoll, limit, true, func(ctx context.Context) (bool, error) {
		waiting, err = done(ctx)
		var no *hopeless
		return err == nil && waiting == "" || errors.As(err, &no), nil
	}) == nil {
		return err
	}
	if err == nil {
		err = errors.New(waiting)
	}
	return fmt.Errorf("not within %s: %w", limit, err)
}

// takenDown returns what the agent still has to remove, until that is nothing or the agent stalls.
func (w *cleanup) takenDown() func(context.Context) (string, error) {
	var s stall
	return func(ctx context.Context) (string, error) {
		waiting, state, err := w.peerings(ctx)
		if err != nil || waiting == "" {
			return waiting, err
		}
		if why := s.check(state, w.agentLives(ctx), time.Now()); why != "" {
			return "", &hopeless{why: why, waiting: waiting}
		}
		return waiting, nil
	}
}

// peerings returns what is left of peerings, and a hash of its state, which changes with every action. Of
// OffloadedPods, of which there may be 10,000, one is read and the others are counted: they are only deleted.
func (w *cleanup) peerings(ctx context.Context) (waiting string, state uint64, err error) {
	sum := fnv.New64a()
	for _, list := range append(asks(), &v1alpha1.ContractList{}, &v1alpha1.OffloadedPodList{}) {
		var opts []client.ListOption
		if _, many := list.(*v1alpha1.OffloadedPodList); many {
			opts = append(opts, client.Limit(1))
		}
		found, err := w.list(ctx, list, opts...)
		if err != nil {
			return "", 0, err
		}
		count := int64(len(found))
		if more := list.GetRemainingItemCount(); more != nil {
			count += *more
		}
		if count > 0 && waiting == "" {
			waiting = fmt.Sprintf("%d %T, the first %s%s", count, found[0], found[0].GetName(), keptBy(found[0]))
		}
		fmt.Fprintf(sum, "%d ", count)
		for _, o := range found {
			fmt.Fprintf(sum, "%s/%s ", o.GetUID(), o.GetResourceVersion())
		}
	}
	return waiting, sum.Sum64(), nil
}

// keptBy returns why an object still exists, if it shows that.
func keptBy(o client.Object) string {
	if n, ok := o.(*v1alpha1.NamespaceOffloading); ok && n.Status.Message != "" {
		return ": " + n.Status.Message
	}
	if f := o.GetFinalizers(); len(f) > 0 {
		return ", kept by finalizers " + strings.Join(f, ", ")
	}
	return ""
}

// stall detects an agent that does nothing of what it is asked. One that did something may have to wait for others,
// such as pods that end as their budgets allow, so cleanup waits for it.
type stall struct {
	began, lost time.Time
	first       uint64
	acted       bool
}

// check returns why to wait no longer for the agent; empty while waiting makes sense.
func (s *stall) check(state uint64, lives bool, now time.Time) string {
	if s.began.IsZero() {
		s.began, s.first = now, state
	}
	s.acted = s.acted || state != s.first
	switch {
	case lives:
		s.lost = time.Time{}
	case s.lost.IsZero():
		s.lost = now
	case now.Sub(s.lost) >= agentBack:
		return fmt.Sprintf("no pod of the agent was ready for %s", agentBack)
	}
	if !s.acted && now.Sub(s.began) >= agentActs {
		return fmt.Sprintf("the agent did nothing within %s", agentActs)
	}
	return ""
}

// fabricClean waits for the fabrics that run; it does not wait for silent ones.
func (w *cleanup) fabricClean(ctx context.Context) (waiting string, err error) {
	err = w.each(ctx, &v1alpha1.FabricNodeList{}, func(o client.Object) error {
		n := o.(*v1alpha1.FabricNode)
		if time.Since(n.Status.ObservedAt.Time) < fabricAlive && len(n.Status.Paths) > 0 {
			waiting = fmt.Sprintf("node %s still has tunnels", n.Name)
		}
		return nil
	})
	return waiting, err
}

// stopAgent keeps the agent from creating again what is removed next.
func (w *cleanup) stopAgent(ctx context.Context) error {
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = w.cfg.Namespace, agentDeployment
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`))
	if err := w.client.SubResource("scale").Patch(ctx, d, patch); err != nil {
		return client.IgnoreNotFound(err)
	}
	return w.await(ctx, agentGoneWait, func(ctx context.Context) (string, error) {
		var pods corev1.PodList
		err := w.client.List(ctx, &pods, client.InNamespace(w.cfg.Namespace), client.MatchingLabels{
			"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "agent",
		})
		if err != nil || len(pods.Items) == 0 {
			return "", err
		}
		return "pod " + pods.Items[0].Name, nil
	})
}

var managed = client.MatchingLabels{v1alpha1.LabelManaged: v1alpha1.Manager} //nolint:gochecknoglobals // a constant

// force removes, by their labels, the objects that the agent did not remove.
func (w *cleanup) force(ctx context.Context) error {
	errs := []error{w.virtualNodes(ctx)}
	for _, list := range kinds() {
		errs = append(errs, w.release(ctx, list))
	}
	errs = append(errs,
		w.each(ctx, &corev1.PodList{}, w.releasePod(ctx), managed),
		w.removeAll(ctx, &mcs.ServiceImportList{}, managed),
		w.removeAll(ctx, &rbacv1.RoleBindingList{}, managed),
		w.each(ctx, &corev1.NamespaceList{}, func(o client.Object) error { return w.namespace(ctx, o) }, managed),
		w.each(ctx, &corev1.NamespaceList{}, w.patch(ctx, `{"metadata":{"labels":{"`+v1alpha1.LabelOffloading+`":null}}}`), client.HasLabels{v1alpha1.LabelOffloading}),
		w.secrets(ctx),
		w.removeAll(ctx, &corev1.ServiceList{}, client.InNamespace(w.cfg.Namespace), managed),
		w.removeAll(ctx, &corev1.ConfigMapList{}, client.InNamespace(w.cfg.Namespace), managed),
		client.IgnoreNotFound(w.client.Delete(ctx, leaseOf(w.cfg.Namespace, agentDeployment))),
	)
	return errors.Join(errs...)
}

// namespace removes one that was created for a consumer. One with volumes stays, and that is printed: they may have
// all data of the consumer, and nobody asked to delete that.
func (w *cleanup) namespace(ctx context.Context, o client.Object) error {
	claims, err := w.list(ctx, &corev1.PersistentVolumeClaimList{}, client.InNamespace(o.GetName()))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(claims, func(c client.Object) bool { return c.GetDeletionTimestamp() == nil }) {
		return w.remove(ctx, o)
	}
	return w.patch(ctx, `{"metadata":{"labels":{"`+v1alpha1.LabelRetained+`":"true"}}}`)(o)
}

// notKept selects the namespaces to remove.
func notKept() client.ListOption {
	kept, err := labels.NewRequirement(v1alpha1.LabelRetained, selection.DoesNotExist, nil)
	if err != nil {
		panic(err) // it is a constant
	}
	return client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(labels.Set(managed)).Add(*kept)}
}

func leaseOf(namespace, name string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = namespace, name
	return lease
}

// virtualNodes removes them with the pods on them, which no longer run anywhere.
func (w *cleanup) virtualNodes(ctx context.Context) error {
	virtual := client.HasLabels{v1alpha1.LabelVirtualNode}
	nodes, err := w.list(ctx, &corev1.NodeList{}, virtual)
	if err != nil || len(nodes) == 0 {
		return err
	}
	pods := w.each(ctx, &corev1.PodList{}, func(o client.Object) error {
		if !slices.ContainsFunc(nodes, func(n client.Object) bool { return n.GetName() == o.(*corev1.Pod).Spec.NodeName }) {
			return nil
		}
		return w.remove(ctx, o, client.GracePeriodSeconds(0))
	})
	return errors.Join(pods, w.each(ctx, &corev1.NodeList{}, func(o client.Object) error {
		return errors.Join(client.IgnoreNotFound(w.remove(ctx, o)), client.IgnoreNotFound(w.client.Delete(ctx, leaseOf(corev1.NamespaceNodeLease, o.GetName()))))
	}, virtual))
}

// release deletes all objects of a kind and removes their finalizers.
func (w *cleanup) release(ctx context.Context, list client.ObjectList) error {
	if err := w.removeAll(ctx, list); err != nil {
		return err
	}
	return w.each(ctx, list, w.patch(ctx, `{"metadata":{"finalizers":null}}`))
}

// releasePod deletes a consumer's pod that has the agent's finalizer, and removes that.
func (w *cleanup) releasePod(ctx context.Context) func(client.Object) error {
	return func(o client.Object) error {
		at := slices.Index(o.GetFinalizers(), v1alpha1.Finalizer)
		if at < 0 {
			return nil
		}
		if err := w.remove(ctx, o); err != nil {
			return err
		}
		return w.client.Patch(ctx, o, client.RawPatch(types.JSONPatchType, fmt.Appendf(nil,
			`[{"op":"test","path":"/metadata/finalizers/%d","value":%q},{"op":"remove","path":"/metadata/finalizers/%d"}]`, at, v1alpha1.Finalizer, at)))
	}
}

func (w *cleanup) secrets(ctx context.Context) error {
	return w.each(ctx, &corev1.SecretList{}, func(o client.Object) error {
		if o.GetName() == store.IdentitySecret && w.cfg.KeepIdentity {
			return nil
		}
		return w.client.Delete(ctx, o)
	}, client.InNamespace(w.cfg.Namespace), managed)
}

// left names what still exists.
func (w *cleanup) left(ctx context.Context) ([]string, error) {
	var left []string
	add := func(list client.ObjectList, opts ...client.ListOption) error {
		found, err := w.list(ctx, list, opts...)
		for _, o := range found {
			left = append(left, strings.TrimPrefix(fmt.Sprintf("%T %s", o, client.ObjectKeyFromObject(o)), "*"))
		}
		return err
	}
	// Namespaces take a moment to empty.
	err := w.await(ctx, agentGoneWait, func(context.Context) (string, error) {
		left = left[:0]
		errs := []error{add(&corev1.NodeList{}, client.HasLabels{v1alpha1.LabelVirtualNode}), add(&corev1.NamespaceList{}, notKept()), add(&rbacv1.RoleBindingList{}, managed)}
		for _, list := range kinds() {
			errs = append(errs, add(list))
		}
		return strings.Join(left, ", "), errors.Join(errs...)
	})
	if err != nil && len(left) == 0 {
		return nil, err
	}
	return left, nil
}
