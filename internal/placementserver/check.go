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

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/placement"
)

// placementName is the name of what the chart installs to place pods, whatever its kind.
const placementName = "entente-placement"

// Check checks what places the pods of offloaded namespaces.
type Check struct {
	// By is which of them the chart installed: see placement.ByPolicy.
	By string
	// Client reads from the API server.
	Client ctrlclient.Reader
	// Address is where the webhook listens.
	Address string

	problem atomic.Pointer[string]
}

// Problem returns what keeps pods from being placed, and what to do; empty if nothing does, or it is not known yet.
func (p *Check) Problem() string { return ptr.Deref(p.problem.Load(), "") }

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
	problem := ""
	if p.By == placement.ByWebhook {
		problem = p.webhook(ctx)
	} else if version, is := strings.CutPrefix(p.By, placement.ByPolicy); is {
		problem = p.policy(ctx, version)
	}
	p.problem.Store(&problem)
}

// upgradeAgain is what helps if something is missing.
const upgradeAgain = "upgrade Entente's chart again, which installs what this API server has"

// policy returns what is wrong with the policy. Whether the API server runs it is not visible.
func (p *Check) policy(ctx context.Context, version string) string {
	for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: admissionregistrationv1.GroupName, Version: version, Kind: kind})
		err := p.Client.Get(ctx, ctrlclient.ObjectKey{Name: placementName}, o)
		switch {
		case meta.IsNoMatchError(err):
			return fmt.Sprintf("this API server no longer has %s in %s, so pods of offloaded namespaces are not placed: %s", kind, version, upgradeAgain)
		case apierrors.IsNotFound(err):
			return fmt.Sprintf("%s %s does not exist, so pods of offloaded namespaces are not placed: %s", kind, placementName, upgradeAgain)
		}
	}
	return ""
}

// webhook returns what keeps the API server from calling the webhook.
func (p *Check) webhook(ctx context.Context) string {
	var config admissionregistrationv1.MutatingWebhookConfiguration
	err := p.Client.Get(ctx, ctrlclient.ObjectKey{Name: placementName}, &config)
	switch {
	case apierrors.IsNotFound(err):
		return "MutatingWebhookConfiguration " + placementName + " does not exist, so pods of offloaded namespaces are not placed: " + upgradeAgain
	case err != nil:
		return "" // the API server does not respond, or is of an older chart
	}
	for i := range config.Webhooks {
		c := &config.Webhooks[i].ClientConfig
		if c.Service == nil {
			return fmt.Sprintf("webhook %s does not lead to the agent, so pods of offloaded namespaces are not placed: %s", config.Webhooks[i].Name, upgradeAgain)
		}
		if err := placement.Probe(ctx, loopback(p.Address), c.Service.Name+"."+c.Service.Namespace+".svc", c.CABundle); err != nil {
			return fmt.Sprintf("the API server cannot use the placement webhook, so pods of offloaded namespaces are not placed: %s: delete Secret %s and upgrade Entente's chart, which makes another certificate",
				err, placementName)
		}
	}
	return ""
}

// loopback returns the address at which this process reaches what it listens on.
func loopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != "" && !net.ParseIP(host).IsUnspecified() {
		return address
	}
	return net.JoinHostPort("localhost", port)
}
