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

// noted says whether the note on an object, of a kind that has one, is of what was applied with a hash.
func noted(ref peering.ObjectRef, o metav1.Object, hash peering.Hash) bool {
	key := noteService
	switch ref.Kind {
	case peering.KindService:
	case peering.KindNetworkPolicy:
		key = notePolicy
	default:
		return true
	}
	plain, err := unpackNote(o.GetAnnotations()[key])
	return err == nil && peering.Object{Ref: ref, JSON: plain}.Hash() == hash
}

// checkNote says whether the note on an object is of what some contract applied. If not, the consumer is to apply it
// again.
func (p *Provider) checkNote(o client.Object) bool {
	ns := p.inv.space(o.GetNamespace())
	if ns == nil {
		return true // it goes with its namespace, or that is seen in a moment
	}
	ref := sharedRef(kindOf(o), ns.Labels[api.LabelOriginNamespace], o)
	if slices.ContainsFunc(holders(o), func(contract string) bool {
		hash, ok := heldBy(o, contract)
		return ok && noted(ref, o, hash)
	}) {
		return true
	}
	p.cfg.Log.Warn("somebody changed what the agent notes on an object of a consumer's; the consumer applies it again",
		"namespace", o.GetNamespace(), "object", ref)
	p.compareAgain(peering.ClusterID(ns.Labels[api.LabelPeer]), time.Now())
	return false
}

// errCompare ends the streams of a consumer, which begins others by comparing.
var errCompare = peering.Errorf(peering.ReasonConflict, "objects at the provider are not as they were applied; compare them again")

// compareAgain has a consumer compare what is here of it, but not all the time: who changes what is noted may do so
// again. What is still wrong then is found by the reflector's interval.
func (p *Provider) compareAgain(peer peering.ClusterID, now time.Time) {
	last, ok := p.compared.Load(peer)
	if ok && now.Sub(last.(time.Time)) < compareInterval {
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

// readNote reads what was kept of a Service.
func readNote(note string) (in peering.ServiceObject, err error) {
	plain, err := unpackNote(note)
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(plain, &in); err != nil {
		return in, fmt.Errorf("decode it: %w", err)
	}
	return in, nil
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
