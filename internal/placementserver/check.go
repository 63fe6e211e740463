package placementserver

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/placement"
)

// What does not happen if something does not work.
const (
	notPlaced  = "so pods of offloaded namespaces are not placed"
	notKeptOff = "so DaemonSets that tolerate virtual nodes are not kept off these"
)

// Check checks what places the pods of offloaded namespaces.
type Check struct {
	// By is which of them the chart installed: see v1alpha1.PlacedByPolicy.
	By string
	// Client reads from the API server.
	Client ctrlclient.Reader
	// Address is where the webhook listens.
	Address string

	found atomic.Pointer[faults]
}

// faults is what does not work, and what to do: what keeps pods from being placed, and DaemonSets on virtual nodes.
type faults struct{ placed, keptOff string }

// Problem returns what keeps pods from being placed, and what to do; empty if nothing does, or it is not known yet.
func (p *Check) Problem() string { return ptr.Deref(p.found.Load(), faults{}).placed }

// Problems returns that, and what keeps DaemonSets that tolerate virtual nodes on these.
func (p *Check) Problems() string {
	now := ptr.Deref(p.found.Load(), faults{})
	if now.placed != "" && now.keptOff != "" {
		return now.placed + "; " + now.keptOff
	}
	return now.placed + now.keptOff
}

// Run checks each minute until ctx ends.
func (p *Check) Run(ctx context.Context) error {
	for {
		p.check(ctx)
		if !notify.Pause(ctx, checkEvery) {
			return nil
		}
	}
}

func (p *Check) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var found faults
	if p.By == v1alpha1.PlacedByWebhook {
		found = p.webhook(ctx)
	} else if version, is := strings.CutPrefix(p.By, v1alpha1.PlacedByPolicy); is {
		found = faults{p.policy(ctx, version), p.daemonSets(ctx, version)}
	}
	p.found.Store(&found)
}

// upgradeAgain is what helps if something is missing.
const upgradeAgain = "upgrade Entente's chart again, which installs what this API server has"

// policy returns what is wrong with the policy. Whether the API server runs it is not visible.
func (p *Check) policy(ctx context.Context, version string) string {
	for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
		err := p.read(ctx, version, kind, v1alpha1.PlacementName)
		switch {
		case meta.IsNoMatchError(err):
			return fmt.Sprintf("this API server no longer has %s in %s, %s: %s", kind, version, notPlaced, upgradeAgain)
		case apierrors.IsNotFound(err):
			return fmt.Sprintf("%s %s does not exist, %s: %s", kind, v1alpha1.PlacementName, notPlaced, upgradeAgain)
		}
	}
	return ""
}

// daemonSets returns what is wrong with the policy that keeps DaemonSets off virtual nodes. Whether there should be one
// is not known.
func (p *Check) daemonSets(ctx context.Context, version string) string {
	if p.read(ctx, version, "MutatingAdmissionPolicy", v1alpha1.PlacementDaemonSetsName) != nil {
		return ""
	}
	if apierrors.IsNotFound(p.read(ctx, version, "MutatingAdmissionPolicyBinding", v1alpha1.PlacementDaemonSetsName)) {
		return fmt.Sprintf("MutatingAdmissionPolicyBinding %s does not exist, %s: %s", v1alpha1.PlacementDaemonSetsName, notKeptOff, upgradeAgain)
	}
	return ""
}

func (p *Check) read(ctx context.Context, version, kind, name string) error {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: admissionregistrationv1.GroupName, Version: version, Kind: kind})
	return p.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, o) //nolint:wrapcheck // the caller says of what
}

// webhook returns what keeps the API server from calling the webhooks.
func (p *Check) webhook(ctx context.Context) (found faults) {
	var config admissionregistrationv1.MutatingWebhookConfiguration
	err := p.Client.Get(ctx, ctrlclient.ObjectKey{Name: v1alpha1.PlacementName}, &config)
	switch {
	case apierrors.IsNotFound(err):
		return faults{placed: fmt.Sprintf("MutatingWebhookConfiguration %s does not exist, %s: %s", v1alpha1.PlacementName, notPlaced, upgradeAgain)}
	case err != nil:
		return faults{} // the API server does not respond, or is of an older chart
	}
	for i := range config.Webhooks {
		w := &config.Webhooks[i]
		problem, so := &found.placed, notPlaced
		if w.Name == v1alpha1.PlacementDaemonSetsHook {
			problem, so = &found.keptOff, notKeptOff
		}
		service := w.ClientConfig.Service
		if service == nil {
			*problem = fmt.Sprintf("webhook %s does not lead to the agent, %s: %s", w.Name, so, upgradeAgain)
			continue
		}
		if err := placement.Probe(ctx, loopback(p.Address), service.Name+"."+service.Namespace+".svc", w.ClientConfig.CABundle); err != nil {
			*problem = fmt.Sprintf("the API server cannot use webhook %s, %s: %s: delete Secret %s and upgrade Entente's chart, which makes another certificate", w.Name, so, err, v1alpha1.PlacementName)
		}
	}
	return found
}

// loopback returns the address at which this process reaches what it listens on.
func loopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != "" && !net.ParseIP(host).IsUnspecified() {
		return address
	}
	return net.JoinHostPort("localhost", port)
}
