package offload

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// sharedRef names an object here as the home of its namespace does.
func sharedRef(kind peering.Kind, origin string, o metav1.Object) peering.ObjectRef {
	return peering.ObjectRef{Kind: kind, Namespace: origin, Name: originName(kind, o), UID: o.GetLabels()[api.LabelOriginUID]}
}

// noteKey is the annotation with what the home of an object said of it; empty for kinds on which nothing is noted.
func noteKey(kind peering.Kind) string {
	switch kind {
	case peering.KindService:
		return noteService
	case peering.KindNetworkPolicy:
		return notePolicy
	case peering.KindNamespace, peering.KindPod, peering.KindConfigMap, peering.KindSecret, peering.KindClaim:
	}
	return ""
}

// noted says whether the note on an object, of a kind that has one, is of what was applied with a hash.
func noted(ref peering.ObjectRef, o metav1.Object, hash peering.Hash) bool {
	key := noteKey(ref.Kind)
	if key == "" {
		return true
	}
	note, err := unpackNote(o.GetAnnotations()[key])
	return err == nil && peering.Object{Ref: ref, JSON: note}.Hash() == hash
}

// checkNote returns the note on an object. It is not ok unless it is of what some contract applied: then the consumer
// is to apply it again, and what is noted is not to be followed.
func (p *Provider) checkNote(o client.Object) (note []byte, ok bool) {
	ns := p.inv.space(o.GetNamespace())
	note, err := unpackNote(o.GetAnnotations()[noteKey(kindOf(o))])
	if ns == nil {
		return note, err == nil // it goes with its namespace, or that is seen in a moment
	}
	ref := sharedRef(kindOf(o), ns.Labels[api.LabelOriginNamespace], o)
	if noted := (peering.Object{Ref: ref, JSON: note}).Hash(); err == nil && slices.ContainsFunc(holders(o), func(contract string) bool {
		hash, ok := heldBy(o, contract)
		return ok && hash == noted
	}) {
		return note, true
	}
	p.cfg.Log.Warn("somebody changed what the agent notes on an object of a consumer's; the consumer applies it again",
		"namespace", o.GetNamespace(), "object", ref)
	p.compareAgain(peering.ClusterID(ns.Labels[api.LabelPeer]), time.Now())
	return nil, false
}

// errCompare ends the streams of a consumer, which begins others by comparing.
var errCompare = peering.Errorf(peering.ReasonConflict, "objects at the provider are not as they were applied; compare them again")

// compareIn returns in what time a consumer may be asked to compare what is here of it: not all the time, as who changes
// it may do so again.
func (p *Provider) compareIn(peer peering.ClusterID, now time.Time) time.Duration {
	last, ok := p.compared.Load(peer)
	if !ok {
		return 0
	}
	return max(last.(time.Time).Add(compareInterval).Sub(now), 0)
}

// compareAgain has a consumer compare what is here of it, if it may. What is still wrong then is found by the reflector's
// interval.
func (p *Provider) compareAgain(peer peering.ClusterID, now time.Time) {
	if p.compareIn(peer, now) > 0 {
		return
	}
	p.compared.Store(peer, now)
	p.hub.End(func(contract string) bool {
		c, ok := p.cfg.Contracts(contract)
		return ok && c.Peer == peer
	})
}

// gzipped begins a note that is compressed, and in base64.
const gzipped = "gzip:"

// packNote returns what is kept of an object on it, compressed if it is large.
func packNote(plain []byte) (string, error) {
	if len(plain) <= plainServiceNote {
		return string(plain), nil
	}
	var out strings.Builder
	out.WriteString(gzipped)
	text := base64.NewEncoder(base64.StdEncoding, &out)
	small := gzip.NewWriter(text)
	if _, err := small.Write(plain); err != nil {
		return "", err //nolint:wrapcheck // the caller says of what
	}
	if err := errors.Join(small.Close(), text.Close()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// unpackNote returns what packNote packed.
func unpackNote(note string) ([]byte, error) {
	plain := []byte(note)
	if packed, ok := strings.CutPrefix(note, gzipped); ok {
		small, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed)))
		if err != nil {
			return nil, fmt.Errorf("decompress it: %w", err)
		}
		// What was taken had no more than that, whatever somebody made of it since.
		if plain, err = io.ReadAll(io.LimitReader(small, 2*wire.MaxObjectBytes)); err != nil {
			return nil, fmt.Errorf("decompress it: %w", err)
		}
	}
	return plain, nil
}

// serviceNote reads what is noted on a Service.
func serviceNote(svc metav1.Object) (in peering.ServiceObject, err error) {
	note, err := unpackNote(svc.GetAnnotations()[noteService])
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(note, &in); err != nil {
		return in, fmt.Errorf("decode it: %w", err)
	}
	return in, nil
}
