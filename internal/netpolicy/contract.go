package netpolicy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/peering"
)

// ContractConfig is the configuration of a Contract. All fields are required.
type ContractConfig struct {
	// ID is the ID of the contract, Peer the provider and Node the virtual node.
	ID   string
	Peer peering.ClusterID
	Node string
	// Want and Unwant set what the provider should have. They must not block.
	Want   func(peering.Object)
	Unwant func(peering.ObjectRef)
	// Decided is called when Undecided, which returned a text, may return none, and not before Undecided was called.
	// It must not block.
	Decided func()
}

// Contract sends the policies for the pods of one contract. It is notified of pods before they are sent, so that a
// policy arrives before the pods that it selects.
type Contract struct {
	home *Home
	cfg  ContractConfig
	// planning serialises plans, so that the newest facts win.
	planning sync.Mutex
	events   *rate.Limiter

	mu sync.Mutex
	// reached is what was known when the contract was last notified of it, asked reports whether Undecided was called.
	reached stage
	asked   bool
	// pods is the pods that were sent and are not gone, by UID.
	pods map[string]sentPod
	// policies is the policies that are wanted.
	policies map[peering.ObjectRef]*state
}

type sentPod struct {
	namespace string
	labels    map[string]string
	// name is set while its labels are not known: an earlier process sent it.
	name string
}

// state is the state of a wanted policy.
type state struct {
	hash    peering.Hash
	refusal *peering.Refusal
	// notes is what of it does not cross, reported the last text that was reported.
	notes, reported string
}

// Open starts sending policies for a contract, and replaces an earlier one with its ID.
func (h *Home) Open(cfg ContractConfig) *Contract {
	c := &Contract{
		home: h, cfg: cfg, events: rate.NewLimiter(rate.Every(eventEvery), eventBurst),
		pods: map[string]sentPod{}, policies: map[peering.ObjectRef]*state{},
	}
	h.mu.Lock()
	h.contracts[cfg.ID] = c
	h.mu.Unlock()
	h.watch()
	return c
}

// Close stops wanting policies: the contract's objects are removed with it.
func (c *Contract) Close() {
	c.home.mu.Lock()
	defer c.home.mu.Unlock()
	if c.home.contracts[c.cfg.ID] == c {
		delete(c.home.contracts, c.cfg.ID)
	}
}

// spaces returns, sorted, the namespaces for which pods were sent or policies are wanted.
func (c *Contract) spaces() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]bool{}
	for _, p := range c.pods {
		out[p.namespace] = true
	}
	for ref := range c.policies {
		out[ref.Namespace] = true
	}
	return slices.Sorted(maps.Keys(out))
}

// Undecided returns why it is not known yet which policies have to be sent before a pod with these labels; empty if it is
// known. That is so once this cluster's policies and namespaces were listed and none of them selects the pod, or its pods and the
// Service that resolves names were read, too. The pod must not be sent before: it would run without its policies.
func (c *Contract) Undecided(namespace string, has map[string]string) string {
	h := c.home
	c.mu.Lock()
	c.asked = true
	c.mu.Unlock()
	is := h.stage()
	if is == nothingKnown {
		return h.unknown("the NetworkPolicies of this cluster are not known yet")
	}
	for _, np := range h.in(namespace) {
		if c.wants(refOf(np)) || !selects(&np.Spec, has) {
			continue
		}
		if is != allKnown {
			return h.unknown(fmt.Sprintf("NetworkPolicy %s selects the pod, and the pods and the resolver of this cluster, which it may allow, are not known yet", np.Name))
		}
		if _, err := h.cfg.Own(); err != nil {
			return peering.Text(fmt.Sprintf("NetworkPolicy %s selects the pod, and this cluster's own addresses are not known yet: %s", np.Name, err), maxText)
		}
	}
	return ""
}

// decided calls Config.Decided where more is known than before, or a policy changed while pods may wait for it.
func (c *Contract) decided(is stage, changed bool) {
	c.mu.Lock()
	call := c.asked && (is > c.reached || changed && is == policiesKnown)
	c.reached = max(c.reached, is)
	c.mu.Unlock()
	if call {
		c.cfg.Decided()
	}
}

// Pod must be called before a pod is sent.
func (c *Contract) Pod(o peering.Object) {
	var in struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if json.Unmarshal(o.JSON, &in) != nil {
		return
	}
	c.note(o.Ref, in.Metadata.Labels)
}

// Ending must be called when a pod is no longer wanted, though it may run for a while.
func (c *Contract) Ending(ref peering.ObjectRef) {
	c.mu.Lock()
	_, known := c.pods[ref.UID]
	if !known {
		c.pods[ref.UID] = sentPod{namespace: ref.Namespace, name: ref.Name}
	}
	c.mu.Unlock()
	if !known {
		c.home.sent(ref.Namespace)
		c.home.queue.AddAfter(task{c.cfg.ID, ref.Namespace}, gatherChanges)
	}
}

// recall finds the labels of pods that an earlier process sent. Pods that are not on the node were never sent.
func (c *Contract) recall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, p := range c.pods {
		if p.name == "" {
			continue
		}
		delete(c.pods, uid)
		if o, ok, _ := c.home.pods.GetStore().GetByKey(p.namespace + "/" + p.name); ok {
			if is := o.(*corev1.Pod); string(is.UID) == uid && is.Spec.NodeName == c.cfg.Node {
				c.pods[uid] = sentPod{namespace: p.namespace, labels: is.Labels}
			}
		}
	}
}

// note records a pod, and plans its namespace at once if a policy selects it that is not wanted yet.
func (c *Contract) note(ref peering.ObjectRef, has map[string]string) {
	c.mu.Lock()
	old, was := c.pods[ref.UID]
	if was && old.name == "" && maps.Equal(old.labels, has) {
		c.mu.Unlock()
		return
	}
	c.pods[ref.UID] = sentPod{namespace: ref.Namespace, labels: has}
	c.mu.Unlock()
	c.home.sent(ref.Namespace)
	if !c.home.pods.HasSynced() {
		return // planned once all is known
	}
	c.home.queue.AddAfter(task{c.cfg.ID, ref.Namespace}, gatherChanges)
	for _, np := range c.home.in(ref.Namespace) {
		if c.wants(refOf(np)) || !selects(&np.Spec, has) {
			continue
		}
		if err := c.plan(ref.Namespace); err != nil {
			c.home.queue.AddRateLimited(task{c.cfg.ID, ref.Namespace})
		}
		return
	}
}

// Gone must be called when a pod is gone at the provider.
func (c *Contract) Gone(ref peering.ObjectRef) {
	c.mu.Lock()
	pod, was := c.pods[ref.UID]
	delete(c.pods, ref.UID)
	c.mu.Unlock()
	if was {
		c.home.queue.AddAfter(task{c.cfg.ID, pod.namespace}, gatherChanges)
	}
}

func (c *Contract) wants(ref peering.ObjectRef) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policies[ref] != nil
}

func refOf(np *networkingv1.NetworkPolicy) peering.ObjectRef {
	return peering.ObjectRef{Kind: peering.KindNetworkPolicy, Namespace: np.Namespace, Name: np.Name, UID: string(np.UID)}
}

// selected reports whether a policy selects a pod that was sent.
func (c *Contract) selected(np *networkingv1.NetworkPolicy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := selector(&np.Spec.PodSelector)
	for _, p := range c.pods {
		if p.namespace == np.Namespace && own.Matches(labels.Set(p.labels)) {
			return true
		}
	}
	return false
}

// plan wants exactly the policies of a namespace that select pods which were sent.
func (c *Contract) plan(namespace string) error {
	if !c.home.known() {
		return nil // planned again once it is
	}
	c.planning.Lock()
	defer c.planning.Unlock()
	c.recall()
	list := slices.DeleteFunc(c.home.in(namespace), func(np *networkingv1.NetworkPolicy) bool { return !c.selected(np) })
	want := map[peering.ObjectRef]bool{}
	if len(list) > 0 {
		w, err := c.home.world(c.cfg.Peer)
		if err != nil {
			return err
		}
		for _, np := range list {
			want[refOf(np)] = true
			if err := c.want(np, w); err != nil {
				return err
			}
		}
	}
	c.mu.Lock()
	var over []peering.ObjectRef
	for ref := range c.policies {
		if ref.Namespace == namespace && !want[ref] {
			over = append(over, ref)
			delete(c.policies, ref)
		}
	}
	c.mu.Unlock()
	for _, ref := range over {
		c.cfg.Unwant(ref)
	}
	return nil
}

func (c *Contract) want(np *networkingv1.NetworkPolicy, w *World) error {
	policy, notes := Leave(np.Namespace, &np.Spec, w)
	data, err := json.Marshal(policy)
	if err == nil && len(data) > MaxBytes {
		// What it allows does not fit, so it allows nothing.
		notes = append(notes, fmt.Sprintf("it has %d bytes with the addresses in it, and at most %d cross", len(data), MaxBytes))
		closed := Policy{Pods: policy.Pods}
		if policy.Ingress != nil {
			closed.Ingress = &[]Rule{}
		}
		if policy.Egress != nil {
			closed.Egress = &[]Rule{}
		}
		data, err = json.Marshal(closed)
	}
	if err != nil {
		return fmt.Errorf("write NetworkPolicy %s/%s as JSON: %w", np.Namespace, np.Name, err)
	}
	o := peering.Object{Ref: refOf(np), JSON: data}
	c.mu.Lock()
	st := c.policies[o.Ref]
	if st == nil {
		st = &state{}
		c.policies[o.Ref] = st
	}
	stale := st.hash != o.Hash() || st.refusal != nil // what was refused for want of room was not kept
	st.hash, st.notes = o.Hash(), strings.Join(notes, "; ")
	c.mu.Unlock()
	if stale {
		c.cfg.Want(o)
	}
	c.report(o.Ref)
	return nil
}

// Ack records the provider's response to a policy.
func (c *Contract) Ack(a peering.Ack) {
	c.mu.Lock()
	st := c.policies[a.Ref]
	if st == nil || a.Hash == (peering.Hash{}) {
		c.mu.Unlock()
		return
	}
	st.refusal = a.Refusal
	c.mu.Unlock()
	c.report(a.Ref)
}

// Orphan reports whether a policy that the provider has and that is not wanted may be deleted.
func (c *Contract) Orphan(ref peering.ObjectRef) bool {
	if !c.home.known() {
		// Without policies in namespaces whose pods leave, this is known without the pods.
		return c.home.policies.HasSynced() && c.home.spaces.HasSynced() && !c.home.needsPods()
	}
	return c.plan(ref.Namespace) == nil && !c.wants(ref)
}

func (h *Home) needsPods() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.matters()
}

// text returns what users have to know of a policy; empty if nothing.
func (c *Contract) text(st *state) string {
	switch {
	case st.refusal != nil && st.refusal.Reason != peering.RefusedNamespace: // that follows its namespace
		return fmt.Sprintf("the provider of %s does not accept it, so it does not apply to the pods that run there: %s", c.cfg.Node, peering.Text(st.refusal.Message, maxText))
	case st.notes != "":
		return fmt.Sprintf("at the provider of %s less is open than here: %s", c.cfg.Node, peering.Text(st.notes, maxText))
	}
	return ""
}

// report records an event for a policy when what users have to know of it changes.
func (c *Contract) report(ref peering.ObjectRef) {
	c.mu.Lock()
	st := c.policies[ref]
	if st == nil {
		c.mu.Unlock()
		return
	}
	text, kind, reason := c.text(st), corev1.EventTypeWarning, "NetworkPolicyNarrowed"
	switch {
	case text == "":
		kind, reason = corev1.EventTypeNormal, "NetworkPolicyApplied"
		text = fmt.Sprintf("it applies to the pods that run at the provider of %s as it does here", c.cfg.Node)
		if st.reported == "" || st.refusal != nil {
			c.mu.Unlock()
			return
		}
	case st.refusal != nil:
		reason = "NetworkPolicyNotApplied"
	}
	if text == st.reported || !c.events.AllowN(time.Now(), 1) {
		c.mu.Unlock()
		return
	}
	st.reported = text
	c.mu.Unlock()
	at := &corev1.ObjectReference{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy", Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(ref.UID)}
	c.home.cfg.Events.Eventf(at, nil, kind, reason, "Offload", "%s", text)
}

// Problem returns which of a namespace's policies do not apply fully at the provider; empty if all do.
func (c *Contract) Problem(namespace string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var texts []string
	for _, ref := range slices.SortedFunc(maps.Keys(c.policies), func(a, b peering.ObjectRef) int { return cmp.Compare(a.Name, b.Name) }) {
		if text := c.text(c.policies[ref]); ref.Namespace == namespace && text != "" {
			texts = append(texts, "NetworkPolicy "+ref.Name+": "+text)
		}
	}
	switch len(texts) {
	case 0:
		return ""
	case 1:
		return texts[0]
	}
	return fmt.Sprintf("%s; and %d more", texts[0], len(texts)-1)
}
