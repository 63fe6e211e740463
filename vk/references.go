package vk

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/refusals"
	"github.com/entente-dev/entente/peering"
)

const (
	// debounce is how long changes of a namespace are gathered.
	debounce = 100 * time.Millisecond
	// firstSync is how long a start waits for the watches of namespaces. A namespace that is not
	// readable by then (RBAC may come later) follows when it is.
	firstSync = 3 * time.Second
)

// objectState is the state of a wanted object that is not a pod.
type objectState struct {
	hash    peering.Hash
	acked   bool
	refusal *peering.Refusal
	refused refusals.Shown
	ackHash peering.Hash // what the provider took or refused last
	// writes bounds the events about it; cut means that not all of its endpoints are sent; unknown is
	// the value of its annotation about endpoints if that is invalid.
	writes  writes
	cut     bool
	unknown string
	// wantedAt is when it was wanted last.
	wantedAt time.Time
}

// namespaceWatch has the watches in one namespace. Each is nil until it is needed: access to
// Secrets is granted in offloaded namespaces only.
type namespaceWatch struct {
	stop                []context.CancelFunc
	configMaps, secrets cache.SharedIndexInformer
	services, slices    cache.SharedIndexInformer
	problem             string // why a watch failed last
	declared            bool   // all Services were reconciled once
	compared            bool   // all Services were compared since the last reason to
}

func synced(list ...cache.SharedIndexInformer) bool {
	return !slices.ContainsFunc(list, func(i cache.SharedIndexInformer) bool { return i == nil || !i.HasSynced() })
}

// watchError returns a handler that reports a failed watch. The watch tries again by itself,
// with back-off.
func (n *Node) watchError(what, namespace string) cache.WatchErrorHandlerWithContext {
	return func(_ context.Context, _ *cache.Reflector, err error) {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return // the usual end of a watch
		}
		n.log.Warn("watch", "what", what, "namespace", namespace, "err", err)
		if namespace == "" {
			return
		}
		n.mu.Lock()
		if w := n.watches[namespace]; w != nil {
			w.problem = peering.Text(err.Error(), 512)
		}
		n.mu.Unlock()
		n.nsQueue.AddAfter(namespace, debounce)
	}
}

// openWatches opens the watches of some namespaces, and waits up to firstSync for them.
func (n *Node) openWatches(ctx context.Context, names map[string]bool) {
	for name := range names {
		if n.offloads(name) == yes {
			n.watchServices(name)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, firstSync)
	defer cancel()
	for name := range names {
		for _, i := range n.informers(name) {
			cache.WaitForCacheSync(ctx.Done(), i.HasSynced)
		}
	}
}

// watchesOf returns a copy of the watches of a namespace, or the zero value.
func (n *Node) watchesOf(namespace string) namespaceWatch {
	n.mu.Lock()
	defer n.mu.Unlock()
	return ptr.Deref(n.watches[namespace], namespaceWatch{})
}

func (n *Node) informers(namespace string) []cache.SharedIndexInformer {
	w := n.watchesOf(namespace)
	return slices.DeleteFunc([]cache.SharedIndexInformer{w.configMaps, w.secrets, w.services, w.slices},
		func(i cache.SharedIndexInformer) bool { return i == nil })
}

func (n *Node) watchReferences(namespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.watch(namespace)
	if w == nil || w.configMaps != nil {
		return
	}
	changed := func(any) { n.nsQueue.AddAfter(namespace, debounce) }
	w.configMaps = n.start(w, "configmaps", namespace, coreinformers.NewConfigMapInformer(n.cfg.Client, namespace, 0, cache.Indexers{}), changed)
	w.secrets = n.start(w, "secrets", namespace, coreinformers.NewSecretInformer(n.cfg.Client, namespace, 0, cache.Indexers{}), changed)
}

func (n *Node) watchServices(namespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.watch(namespace)
	if w == nil || w.services != nil {
		return
	}
	changed := func(obj any) { n.changedService(namespace, obj) }
	w.services = n.start(w, "services", namespace, coreinformers.NewServiceInformer(n.cfg.Client, namespace, 0, crossingIndex()), changed)
	w.slices = n.start(w, "endpointslices", namespace, discoveryinformers.NewEndpointSliceInformer(n.cfg.Client, namespace, 0, crossingIndex()), changed)
}

// watch returns the watches of a namespace, which it adds if necessary; nil if the Node does not
// run. n.mu is held.
func (n *Node) watch(namespace string) *namespaceWatch {
	if n.launch == nil {
		return nil
	}
	w := n.watches[namespace]
	if w == nil {
		w = &namespaceWatch{}
		n.watches[namespace] = w
	}
	return w
}

// start runs an informer until its namespace's watches are closed, and calls changed with each object that
// changes, as it was and as it is. n.mu is held.
func (n *Node) start(w *namespaceWatch, what, namespace string, inf cache.SharedIndexInformer, changed func(any)) cache.SharedIndexInformer {
	// These fail only on an informer that has started.
	_ = inf.SetTransform(dropManagedFields)
	_ = inf.SetWatchErrorHandlerWithContext(n.watchError(what, namespace))
	_, _ = inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed,
		UpdateFunc: func(was, is any) {
			changed(was)
			changed(is)
		},
	})
	w.stop = append(w.stop, n.launch(inf.RunWithContext), n.launch(func(ctx context.Context) {
		if cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			n.mu.Lock()
			w.problem, w.compared = "", false
			n.mu.Unlock()
			n.nsQueue.AddAfter(namespace, debounce) // an empty list makes no event
		}
	}))
	return inf
}

// closeWatches ends the watches of a namespace. Wanted objects stay wanted.
func (n *Node) closeWatches(namespace string) {
	n.mu.Lock()
	w := n.watches[namespace]
	delete(n.watches, namespace)
	n.mu.Unlock()
	if w != nil {
		for _, stop := range w.stop {
			stop()
		}
	}
}

// noteReferences records the objects to which a pod on the node refers.
func (n *Node) noteReferences(p *corev1.Pod) {
	var refs []podspec.Reference
	if !podstatus.Terminal(p.Status.Phase) && n.offloadsPods(p.Namespace) != no || podstatus.Offloaded(p) && !podstatus.Terminal(p.Status.Phase) {
		if t, refusal := podspec.Leave(p); refusal == nil {
			refs = t.References
		}
	}
	if len(refs) == 0 {
		n.forgetReferences(p)
		return
	}
	n.mu.Lock()
	if n.refs[p.Namespace] == nil {
		n.refs[p.Namespace] = map[string][]podspec.Reference{}
	}
	n.refs[p.Namespace][string(p.UID)] = refs
	n.mu.Unlock()
	n.watchReferences(p.Namespace)
}

func (n *Node) forgetReferences(p *corev1.Pod) {
	n.mu.Lock()
	_, had := n.refs[p.Namespace][string(p.UID)]
	delete(n.refs[p.Namespace], string(p.UID))
	if len(n.refs[p.Namespace]) == 0 {
		delete(n.refs, p.Namespace)
	}
	delete(n.waiting[p.Namespace], string(p.UID))
	if len(n.waiting[p.Namespace]) == 0 {
		delete(n.waiting, p.Namespace)
	}
	n.mu.Unlock()
	if had {
		n.nsQueue.AddAfter(p.Namespace, debounce)
	}
}

// wait reconciles a pod again when what it waits for may be there, and reports what that is.
func (n *Node) wait(ctx context.Context, p podPlan) error {
	if p.missing.reason == reasonUndecided {
		n.podQueue.AddAfter(string(p.pod.UID), undecidedRetry)
	} else {
		n.waitForReferences(p)
	}
	if p.missing.soon {
		return nil // too early for an event
	}
	n.warn(p, p.missing.reason, p.missing.what)
	return n.patchStatus(ctx, p.pod, podstatus.Waiting(p.pod, p.missing.reason, p.missing.what, metav1.Now()))
}

// waitForReferences reconciles a pod again when its namespace changes.
func (n *Node) waitForReferences(p podPlan) {
	ns := p.pod.Namespace
	n.mu.Lock()
	if n.waiting[ns] == nil {
		n.waiting[ns] = map[string]bool{}
	}
	n.waiting[ns][string(p.pod.UID)] = true
	n.mu.Unlock()
	n.watchReferences(ns)
	if p.waits != "" {
		return // its claims are looked up again by a timer
	}
	// The object may have come since it was looked up.
	if t, refusal := podspec.Leave(p.pod); refusal == nil {
		if m := n.missing(ns, t.References); m.what == "" {
			n.podQueue.Add(string(p.pod.UID))
		}
	}
}

// missing is why a pod's references keep it from being sent; what is "" if they do not.
type missing struct {
	reason, what string
	// soon means that it will be there in a moment: the caches of the namespace are not synced yet, or the pod has
	// waited for its policies for less than undecidedRetry.
	soon bool
}

// missing returns which of a pod's references do not exist.
func (n *Node) missing(namespace string, refs []podspec.Reference) missing {
	if len(refs) == 0 {
		return missing{}
	}
	w := n.watchesOf(namespace)
	if !synced(w.configMaps, w.secrets) {
		m := fmt.Sprintf("the ConfigMaps and Secrets of namespace %s are not known yet", namespace)
		if w.problem != "" {
			m += ": " + w.problem
		}
		return missing{reason: reasonMissing, what: m, soon: w.problem == ""}
	}
	var problems []string
	var out missing
	for _, r := range refs {
		_, found, err := w.object(namespace, r)
		switch {
		case err != nil:
			problems, out.reason = append(problems, err.Error()), reasonMissing
		case !found && !r.Optional:
			problems, out.reason = append(problems, fmt.Sprintf("%s %q is not there", r.Kind, r.Name)), cmp.Or(out.reason, notFound("Mandatory", r.Kind))
		}
	}
	if len(problems) > 0 {
		out.what = strings.Join(problems, "; ") + "; the pod waits for that"
	}
	return out
}

// notFound is the reason that the virtual-kubelet project's library gives for an object that does not exist.
func notFound(how string, kind peering.Kind) string { return how + kind.String() + "NotFound" }

// doWithout records which optional references of a pod that is sent do not exist.
func (n *Node) doWithout(pod *corev1.Pod, refs []podspec.Reference) {
	if len(refs) == 0 {
		return
	}
	w := n.watchesOf(pod.Namespace)
	if !synced(w.configMaps, w.secrets) {
		return
	}
	for _, r := range refs {
		if _, found, err := w.object(pod.Namespace, r); r.Optional && !found && err == nil {
			n.event(pod, corev1.EventTypeNormal, notFound("Optional", r.Kind), fmt.Sprintf("%s %q is not there; the pod runs without it", r.Kind, r.Name))
		}
	}
}

// object returns the object of a reference in the form in which it is sent, and whether the cache
// has it. A ServiceAccount token is an error: it is never sent.
func (w *namespaceWatch) object(namespace string, r podspec.Reference) (o peering.Object, found bool, err error) {
	key := namespace + "/" + r.Name
	switch r.Kind { //nolint:exhaustive // a pod refers to no other kinds
	case peering.KindConfigMap:
		obj, ok, err := w.configMaps.GetStore().GetByKey(key)
		if cm, is := obj.(*corev1.ConfigMap); err == nil && ok && is {
			o, err = configMapObject(cm)
			return o, err == nil, err
		}
	case peering.KindSecret:
		obj, ok, err := w.secrets.GetStore().GetByKey(key)
		if s, is := obj.(*corev1.Secret); err == nil && ok && is {
			o, err = secretObject(s)
			return o, err == nil, err
		}
	}
	return peering.Object{}, false, nil
}

// configMapObject is a ConfigMap in the form in which it is sent: its data and no more.
func configMapObject(cm *corev1.ConfigMap) (peering.Object, error) {
	return object(peering.ObjectRef{Kind: peering.KindConfigMap, Namespace: cm.Namespace, Name: cm.Name, UID: string(cm.UID)},
		&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: cm.Namespace, Name: cm.Name},
			Immutable:  cm.Immutable, Data: cm.Data, BinaryData: cm.BinaryData,
		})
}

// secretObject is a Secret in the form in which it is sent: its type, its data and no more.
func secretObject(s *corev1.Secret) (peering.Object, error) {
	if s.Type == corev1.SecretTypeServiceAccountToken || s.Type == corev1.SecretTypeBootstrapToken {
		return peering.Object{}, fmt.Errorf("secret %q is a %s, a credential of this cluster, which does not cross", s.Name, s.Type)
	}
	return object(peering.ObjectRef{Kind: peering.KindSecret, Namespace: s.Namespace, Name: s.Name, UID: string(s.UID)},
		&corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
			Type:       s.Type, Immutable: s.Immutable, Data: s.Data,
		})
}

func object(ref peering.ObjectRef, v any) (peering.Object, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return peering.Object{}, fmt.Errorf("write %s as JSON: %w", ref, err)
	}
	if len(data) > maxObjectBytes {
		return peering.Object{}, fmt.Errorf("%s is %d bytes, at most %d cross", ref, len(data), maxObjectBytes)
	}
	return peering.Object{Ref: ref, JSON: data}, nil
}

// needed returns the references of those pods of a namespace that were sent or will be.
func (n *Node) needed(namespace string) map[podspec.Reference]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[podspec.Reference]bool{}
	for uid, refs := range n.refs[namespace] {
		st := n.state[uid]
		if st == nil || !st.wanted && !st.taken {
			if p := n.localPod(uid); p == nil || !podstatus.Offloaded(p) {
				continue
			}
		}
		for _, r := range refs {
			out[podspec.Reference{Kind: r.Kind, Name: r.Name}] = true
		}
	}
	return out
}

// wantReferences wants the objects to which pods of a namespace refer.
func (n *Node) wantReferences(namespace string, refs []podspec.Reference) {
	if len(refs) == 0 {
		return
	}
	n.refsMu.Lock()
	defer n.refsMu.Unlock()
	w := n.watchesOf(namespace)
	if !synced(w.configMaps, w.secrets) {
		return // reconciled again after the sync
	}
	for _, r := range refs {
		switch o, found, err := w.object(namespace, r); {
		case err != nil:
			n.log.Warn("a reference is not sent", "namespace", namespace, "name", r.Name, "err", err)
		case found:
			n.unwantNamesakes(o.Ref)
			n.wantObject(o)
		}
	}
}

// unwantNamesakes unwants objects of the same name with another UID, as the cache has their
// successor.
func (n *Node) unwantNamesakes(ref peering.ObjectRef) {
	for _, old := range n.wantedNamed(ref) {
		if old.UID != ref.UID {
			n.unwantObject(old)
		}
	}
}

// syncReferences synchronises the ConfigMaps and Secrets of a namespace.
func (n *Node) syncReferences(ctx context.Context, namespace string) error {
	needed := n.needed(namespace)
	n.wantReferences(namespace, slices.Collect(maps.Keys(needed)))
	for _, ref := range n.wantedObjects(namespace, peering.KindConfigMap, peering.KindSecret) {
		if needed[podspec.Reference{Kind: ref.Kind, Name: ref.Name}] {
			is, err := n.cachedOrLive(ctx, ref)
			if err != nil {
				return err
			}
			if is {
				continue
			}
		}
		n.unwantObject(ref)
	}
	return nil
}

// cached returns an object of the cache, or nil.
func (n *Node) cached(ref peering.ObjectRef) metav1.Object {
	w := n.watchesOf(ref.Namespace)
	informer := map[peering.Kind]cache.SharedIndexInformer{
		peering.KindConfigMap: w.configMaps, peering.KindSecret: w.secrets, peering.KindService: w.services,
	}[ref.Kind]
	if informer == nil {
		return nil
	}
	obj, ok, err := informer.GetStore().GetByKey(ref.Namespace + "/" + ref.Name)
	if o, is := obj.(metav1.Object); err == nil && ok && is && string(o.GetUID()) == ref.UID {
		return o
	}
	return nil
}

// cachedOrLive reports whether an object exists. If the cache does not have it, it asks the API
// server.
func (n *Node) cachedOrLive(ctx context.Context, ref peering.ObjectRef) (bool, error) {
	if n.cached(ref) != nil {
		return true, nil
	}
	return n.live(ctx, ref)
}

// live asks the API server whether the object with this UID exists.
func (n *Node) live(ctx context.Context, ref peering.ObjectRef) (bool, error) {
	var o metav1.Object
	var err error
	core := n.cfg.Client.CoreV1()
	switch ref.Kind {
	case peering.KindPod:
		o, err = core.Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	case peering.KindConfigMap:
		o, err = core.ConfigMaps(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	case peering.KindSecret:
		o, err = core.Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	case peering.KindService:
		o, err = core.Services(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	case peering.KindNamespace:
		o, err = core.Namespaces().Get(ctx, ref.Name, metav1.GetOptions{})
	default:
		return false, fmt.Errorf("%s is not of a kind that crosses", ref)
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", ref, err)
	}
	return string(o.GetUID()) == ref.UID, nil
}

// orphanReference reports whether a ConfigMap or Secret at the provider may be deleted. The pod
// cache is synced: that no pod needs it is evidence.
func (n *Node) orphanReference(ctx context.Context, ref peering.ObjectRef) (bool, error) {
	if !n.needed(ref.Namespace)[podspec.Reference{Kind: ref.Kind, Name: ref.Name}] {
		return true, nil
	}
	is, err := n.cachedOrLive(ctx, ref)
	return err == nil && !is, err
}

// wantObject wants an object, unless it was wanted before and taken.
func (n *Node) wantObject(o peering.Object) {
	n.mu.Lock()
	send := n.noteWanted(o)
	n.mu.Unlock()
	if send {
		n.cfg.Mirror.Want(o)
	}
}

// noteWanted records that an object is wanted in this form, and reports whether it has to be sent.
// n.mu is held.
func (n *Node) noteWanted(o peering.Object) bool {
	hash := o.Hash()
	st := n.objects[o.Ref]
	send := st == nil || st.hash != hash || wantAgain(st.wantedAt, st.refusal == nil && st.ackHash == hash)
	if st == nil {
		st = &objectState{}
		n.objects[o.Ref] = st
		n.named[anyUID(o.Ref)] = append(n.named[anyUID(o.Ref)], o.Ref.UID)
	}
	st.hash = hash
	if send {
		st.wantedAt = time.Now()
	}
	return send
}

// wantAgain reports whether to want an object again: the mirror drops objects for which it has no room, so
// one that the provider has not taken is wanted again after a pause. Everything is reconciled each minute.
func wantAgain(at time.Time, taken bool) bool { return !taken && time.Since(at) >= wantPause }

// anyUID is the key for all wanted objects of one name, whatever their UID.
func anyUID(ref peering.ObjectRef) peering.ObjectRef {
	ref.UID = ""
	return ref
}

// unwantObject declares, on evidence, that an object is no longer wanted.
func (n *Node) unwantObject(ref peering.ObjectRef) {
	n.mu.Lock()
	delete(n.objects, ref)
	name := anyUID(ref)
	if n.named[name] = slices.DeleteFunc(n.named[name], func(uid string) bool { return uid == ref.UID }); len(n.named[name]) == 0 {
		delete(n.named, name)
	}
	n.mu.Unlock()
	n.cfg.Mirror.Unwant(ref, nil)
}

// wantedNamed returns the wanted objects with the kind and name of ref.
func (n *Node) wantedNamed(ref peering.ObjectRef) (out []peering.ObjectRef) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, uid := range n.named[anyUID(ref)] {
		ref.UID = uid
		out = append(out, ref)
	}
	return out
}

// unwantAll unwants all objects of some kinds in a namespace.
func (n *Node) unwantAll(namespace string, kinds ...peering.Kind) {
	for _, ref := range n.wantedObjects(namespace, kinds...) {
		n.unwantObject(ref)
	}
}

// wantedObjects returns the wanted objects of some kinds in a namespace.
func (n *Node) wantedObjects(namespace string, kinds ...peering.Kind) []peering.ObjectRef {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []peering.ObjectRef
	for ref := range n.objects {
		if slices.Contains(kinds, ref.Kind) && namespaceOf(ref) == namespace {
			out = append(out, ref)
		}
	}
	return out
}

// ackObject records the provider's acknowledgement of an object that is not a pod.
func (n *Node) ackObject(a peering.Ack) {
	n.mu.Lock()
	st := n.objects[a.Ref]
	if st == nil || a.Hash == (peering.Hash{}) {
		n.mu.Unlock()
		return
	}
	news := st.refused.Set(a.Ref.Kind, a.Refusal, time.Now())
	st.refusal, st.acked, st.ackHash = a.Refusal, st.acked || a.Refusal == nil, a.Hash
	if a.Ref.Kind == peering.KindNamespace && a.Refusal == nil && a.Hash == st.hash {
		n.fences.Took(a.Ref.Name)
	}
	may := news && a.Ref.Kind == peering.KindService && st.writes.event(time.Now(), n.share)
	n.mu.Unlock()
	if may {
		n.recorder.Event(serviceReference(a.Ref), corev1.EventTypeWarning, a.Refusal.Reason.Condition(),
			peering.Text("the provider of "+n.cfg.Name+" refused it: "+a.Refusal.Message, podstatus.MaxMessageBytes))
	}
	if news {
		n.complain.Do(func() { n.log.Warn("the provider refused an object", "ref", a.Ref.String(), "err", a.Refusal) })
	}
	if news && a.Ref.Kind == peering.KindNamespace {
		for _, p := range n.localPods() { // their statuses show it
			if p.Namespace == a.Ref.Name {
				n.podQueue.Add(string(p.UID))
			}
		}
	}
}
