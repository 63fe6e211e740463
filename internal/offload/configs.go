package offload

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/pages"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// If another writer changes or deletes a consumer's ConfigMap or Secret, its home applies it again. A change
// shows in the metadata. Only then is the object read, and compared with the hash in its annotation.

// configKinds are the kinds that are compared in this way.
var configKinds = []peering.Kind{peering.KindConfigMap, peering.KindSecret} //nolint:gochecknoglobals // a constant

// configState is what is known about a ConfigMap or Secret.
type configState struct {
	// seen is the last resource version in an event; "" means that it is gone.
	seen string
	// intact is the last resource version known to be as applied; "" if none is.
	intact string
	// spoiled means that its home was asked to apply it again, and has not yet.
	spoiled bool
	// asked is when home was last asked, and pause how long it is not asked again: the other writer may go
	// on.
	asked time.Time
	pause time.Duration
}

// ask records that the home of an object is asked to apply it again.
func (s *configState) ask(now time.Time) {
	if now.Sub(s.asked) >= configCalm {
		s.pause = 0
	}
	s.asked, s.pause, s.spoiled = now, min(max(2*s.pause, compareInterval), configCalm/2), true
}

func configKey(kind peering.Kind, o metav1.Object) stock.Key {
	return stock.Key{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// config calls f with the state of a ConfigMap or Secret, if it has one.
func (v *inventory) config(k stock.Key, f func(*configState)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[k.Namespace]; w != nil && w.configs[k] != nil {
		f(w.configs[k])
	}
}

// newConfig is config, for an object that may be new.
func (v *inventory) newConfig(k stock.Key, f func(*configState)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[k.Namespace]
	if w == nil || !slices.Contains(configKinds, k.Kind) || k.Name == recordName {
		return
	}
	if w.configs[k] == nil {
		w.configs[k] = &configState{}
	}
	f(w.configs[k])
}

// wrote records that an object is as it was applied. Its namespace may be too new to be in the cache.
func (v *inventory) wrote(o client.Object) {
	k, version := configKey(kindOf(o), o), o.GetResourceVersion()
	v.mu.Lock()
	if v.watches[k.Namespace] == nil && slices.Contains(configKinds, k.Kind) {
		if v.early[k.Namespace] == nil {
			v.early[k.Namespace] = make(map[stock.Key]*configState)
		}
		v.early[k.Namespace][k] = &configState{intact: version}
	}
	v.mu.Unlock()
	v.newConfig(k, func(s *configState) { s.intact, s.spoiled = version, false })
}

// unwrote forgets an object that the agent is about to delete, or that is gone.
func (v *inventory) unwrote(k stock.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[k.Namespace]; w != nil {
		delete(w.configs, k)
	}
}

// seeConfig queues a comparison of an object, unless the agent wrote this version.
func (v *inventory) seeConfig(k stock.Key, version string) {
	v.newConfig(k, func(s *configState) {
		if s.seen = version; s.seen != s.intact {
			v.p.configs.Later(types.NamespacedName{Namespace: k.Namespace, Name: k.Name}, configGather)
		}
	})
}

// leaveConfig queues a comparison of an object that is gone, unless the agent deleted it.
func (v *inventory) leaveConfig(k stock.Key) {
	v.config(k, func(s *configState) {
		s.seen = ""
		v.p.configs.Later(types.NamespacedName{Namespace: k.Namespace, Name: k.Name}, configGather)
	})
}

// knownConfigs returns the known objects of some kinds in a namespace.
func (v *inventory) knownConfigs(namespace string, kinds ...peering.Kind) (known []stock.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[namespace]; w != nil {
		for k := range w.configs {
			if slices.Contains(kinds, k.Kind) {
				known = append(known, k)
			}
		}
	}
	return known
}

// asApplied reports whether an object is as it was applied, as far as that is known.
func (v *inventory) asApplied(kind peering.Kind, o metav1.Object) bool {
	if !slices.Contains(configKinds, kind) {
		return true
	}
	spoiled := o.GetAnnotations()[noteContent] == ""
	v.config(configKey(kind, o), func(s *configState) { spoiled = spoiled || s.spoiled })
	return !spoiled
}

// watchConfigs watches the metadata of the ConfigMaps and Secrets of a namespace, within the limits: in other
// namespaces they are compared when they are counted. The lock is held.
func (v *inventory) watchConfigs(namespace string, w *spaceWatch) {
	if w.endConfigs != nil || !mayWatch(v.configWatches, w.peer, maxConfigWatches, maxPeerConfigWatches) {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	v.configWatches[w.peer]++
	w.endConfigs = func() {
		cancel()
		w.endConfigs = nil
		if v.configWatches[w.peer]--; v.configWatches[w.peer] == 0 {
			delete(v.configWatches, w.peer)
		}
	}
	for _, kind := range configKinds {
		seen, informer := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: pages.ListWatch(v.p.client, func() client.ObjectList { return metadataList(kind) }, slimConfig,
				client.InNamespace(namespace), client.MatchingLabels{api.LabelManaged: api.Manager, api.LabelPeer: string(w.peer)}),
			ObjectType: &metav1.PartialObjectMetadata{},
			Transform:  slimConfig,
			Handler: handle(func(o *metav1.PartialObjectMetadata) { v.seeConfig(configKey(kind, o), o.ResourceVersion) },
				func(o *metav1.PartialObjectMetadata) { v.leaveConfig(configKey(kind, o)) }),
		})
		v.work.Go(func() {
			if v.p.awaitGrant(ctx, namespace) == nil {
				informer.RunWithContext(ctx)
			}
		})
		v.work.Go(func() {
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				return
			}
			for _, k := range v.knownConfigs(namespace, kind) { // earlier deletes cause no event
				if _, ok, _ := seen.GetByKey(namespace + "/" + k.Name); !ok {
					v.leaveConfig(k)
				}
			}
		})
	}
}

// slimConfig keeps only the version of an object.
func slimConfig(in any) (any, error) {
	if o, ok := in.(*metav1.PartialObjectMetadata); ok {
		o.ObjectMeta = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
	}
	return in, nil
}

// compareConfigs compares the ConfigMap and the Secret of a name with what was applied, and asks their home
// to apply them again if they differ or are gone.
func (p *Provider) compareConfigs(ctx context.Context, key types.NamespacedName) error {
	ns := p.inv.space(key.Namespace)
	if key.Name == "" || ns == nil || ns.DeletionTimestamp != nil {
		return nil
	}
	for _, kind := range configKinds {
		k := stock.Key{Kind: kind, Namespace: key.Namespace, Name: key.Name}
		now, wait, differs, known := time.Now(), time.Duration(0), false, false
		p.inv.config(k, func(s *configState) {
			wait, differs, known = s.asked.Add(s.pause).Sub(now), s.seen != s.intact && !s.spoiled, s.intact != ""
		})
		if !differs {
			continue
		}
		if wait > 0 {
			p.configs.Later(key, wait)
			continue
		}
		how, err := p.compareConfig(ctx, k, ns, known)
		if err != nil {
			return err
		}
		if how == "" {
			continue
		}
		peer := peering.ClusterID(ns.Labels[api.LabelPeer])
		if wait := p.compareIn(peer, now); wait > 0 {
			p.configs.Later(key, wait)
			continue
		}
		p.inv.config(k, func(s *configState) { s.ask(now) })
		p.cfg.Log.Warn("an object of a consumer was changed by another writer; the consumer applies it again",
			"namespace", k.Namespace, "kind", kind.String(), "name", k.Name, "change", how)
		p.compareAgain(peer, now)
	}
	return nil
}

// compareConfig reads a ConfigMap or Secret, and returns how it was changed, or "" if it is as it was
// applied. An object that is gone counts as deleted only if it is known to have been here.
func (p *Provider) compareConfig(ctx context.Context, k stock.Key, ns *corev1.Namespace, known bool) (how string, err error) {
	o := newShared(k.Kind)
	err = p.client.Get(ctx, types.NamespacedName{Namespace: k.Namespace, Name: k.Name}, o)
	switch gone := apierrors.IsNotFound(err); {
	case apierrors.IsForbidden(err) || err == nil && o.GetDeletionTimestamp() != nil:
		return "", nil // the namespace or the object is being deleted, which another event reports
	case err != nil && !gone:
		return "", fmt.Errorf("read it: %w", err)
	case gone && known:
		return "deleted", nil
	case gone:
		p.inv.unwrote(k)
		return "", nil
	case !known && len(holders(o)) == 0:
		return "", nil // no contract holds it
	case !ours(o, peering.ClusterID(ns.Labels[api.LabelPeer])):
		return "taken over", nil
	case o.GetAnnotations()[noteContent] != reflection.Content(o) || len(holders(o)) == 0:
		return "updated", nil
	}
	p.inv.wrote(o)
	return "", nil
}
