package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
)

// The reasons of findings about placement: docs/troubleshooting.md explains each.
const (
	reasonNotPlaced  = "PodsNotPlaced"
	reasonNotKeptOff = "DaemonSetsNotKeptOff"
	reasonNotChecked = "PlacementNotChecked"
)

// Placed is what the API server has of what places pods.
type Placed struct {
	// By is "policy/" and the API version of the policy, "webhook", or "off" if the chart installed neither.
	// It is empty if it is missing, or not known.
	By string
	// Missing is what the chart installed and is gone.
	Missing []Missing
	// Hooks are the agent's webhooks that the API server calls.
	Hooks []Hook
	// Unread is why it is not known.
	Unread error
}

// Missing is an object that does not exist.
type Missing struct {
	What string
	// DaemonSets says that it only keeps DaemonSets off virtual nodes.
	DaemonSets bool
}

// Hook is a webhook of the agent.
type Hook struct {
	Name string
	// Expires is when the authority ends by which the API server verifies it, and with it, its certificate;
	// zero if there is none.
	Expires time.Time
	// Fault is why the API server cannot call it, and Unprobed why that could not be found out.
	Fault, Unprobed error
}

// dialer opens a connection to a port of the agent's pod in a namespace.
type dialer func(ctx context.Context, namespace string, port int) (net.Conn, error)

// errNoAuthority says that the API server has no certificate to verify a webhook by.
var errNoAuthority = errors.New("its caBundle has no certificate")

// placed reads what places pods, and completes a TLS handshake with each webhook as the API server does.
func placed(ctx context.Context, c rest.Interface, dial dialer) (p Placed) {
	has, failed := objects(ctx, c)
	defer func() {
		if err := failed(); err != nil {
			p = Placed{Unread: err}
		}
	}()
	// It warns of pods that cannot run where they are sent, whatever places them.
	if !has("v1", "validatingadmissionpolicies", v1alpha1.PlacementName, nil) {
		return Placed{By: v1alpha1.PlacedByNothing}
	}
	for _, version := range []string{"v1", "v1beta1"} {
		if !has(version, "mutatingadmissionpolicies", v1alpha1.PlacementName, nil) {
			continue
		}
		p.By = v1alpha1.PlacedByPolicy + version
		if !has(version, "mutatingadmissionpolicybindings", v1alpha1.PlacementName, nil) {
			p.Missing = append(p.Missing, Missing{What: "MutatingAdmissionPolicyBinding " + v1alpha1.PlacementName})
		}
		if has(version, "mutatingadmissionpolicies", v1alpha1.PlacementDaemonSetsName, nil) && !has(version, "mutatingadmissionpolicybindings", v1alpha1.PlacementDaemonSetsName, nil) {
			p.Missing = append(p.Missing, Missing{What: "MutatingAdmissionPolicyBinding " + v1alpha1.PlacementDaemonSetsName, DaemonSets: true})
		}
		return p
	}
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if !has("v1", "mutatingwebhookconfigurations", v1alpha1.PlacementName, &config) {
		p.Missing = append(p.Missing, Missing{What: "what the chart installs, a MutatingAdmissionPolicy or a MutatingWebhookConfiguration " + v1alpha1.PlacementName + ","})
		return p
	}
	p.By = v1alpha1.PlacedByWebhook
	for i := range config.Webhooks {
		p.Hooks = append(p.Hooks, probed(ctx, config.Webhooks[i].Name, config.Webhooks[i].ClientConfig, dial))
	}
	return p
}

// objects returns a function that reads an object of the API group of admission by name into o, unless that is nil,
// and reports whether it exists, and one that returns why the last one that failed did.
func objects(ctx context.Context, c rest.Interface) (has func(version, resource, name string, o any) bool, failed func() error) {
	var failure error
	has = func(version, resource, name string, o any) bool {
		raw, err := c.Get().AbsPath("/apis", admissionregistrationv1.GroupName, version, resource, name).Do(ctx).Raw()
		if apierrors.IsNotFound(err) {
			return false
		}
		if err == nil && o != nil {
			err = json.Unmarshal(raw, o)
		}
		if err != nil {
			failure = fmt.Errorf("read %s %s: %w", resource, name, err)
		}
		return err == nil
	}
	return has, func() error { return failure }
}

// probed probes a webhook.
func probed(ctx context.Context, name string, config admissionregistrationv1.WebhookClientConfig, dial dialer) Hook {
	h := Hook{Name: name, Expires: expiry(config.CABundle)}
	service := config.Service
	switch {
	case service == nil || service.Port == nil:
		h.Fault = errors.New("its configuration does not lead to the agent")
		return h
	case h.Expires.IsZero():
		h.Fault = errNoAuthority
		return h
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := dial(ctx, service.Namespace, int(*service.Port))
	switch {
	case errors.Is(err, client.ErrNoAgent):
		h.Fault = err
		return h
	case err != nil: // also where this user may not forward ports, or a proxy lets none be forwarded
		h.Unprobed = err
		return h
	}
	defer func() { _ = conn.Close() }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CABundle)
	h.Fault = tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: service.Name + "." + service.Namespace + ".svc", MinVersion: tls.VersionTLS13}).HandshakeContext(ctx)
	return h
}

// expiry returns when the first certificate in a PEM ends; zero if there is none.
func expiry(bundle []byte) time.Time {
	block, _ := pem.Decode(bundle)
	if block == nil {
		return time.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return cert.NotAfter
}

// placementFindings returns what keeps pods of offloaded namespaces from virtual nodes, and pods of DaemonSets on them.
func placementFindings(p Placed, now time.Time) (found []Finding) {
	const upgrade = "upgrade Entente's chart again, which installs what this API server has"
	add := func(daemonSets bool, what, remedy string) {
		f := Finding{Area: AreaPlacement, Reason: reasonNotPlaced, Severity: Error, Message: what + ", so new pods of offloaded namespaces stay at home, or pending", Remedy: remedy}
		if daemonSets {
			f.Reason, f.Severity, f.Message = reasonNotKeptOff, Warning, what+", so pods of DaemonSets that tolerate virtual nodes come up there and never run"
		}
		found = append(found, f)
	}
	for _, m := range p.Missing {
		add(m.DaemonSets, m.What+" does not exist", upgrade)
	}
	unprobed := p.Unread
	for _, h := range p.Hooks {
		if what, remedy := h.wrong(now); what != "" {
			add(h.Name == v1alpha1.PlacementDaemonSetsHook, "the API server cannot use webhook "+h.Name+": "+what, remedy)
		} else if h.Unprobed != nil {
			unprobed = h.Unprobed
		}
	}
	if unprobed == nil {
		return found
	}
	remedy := "see `entente info`, where the agent says what places pods, and what is wrong with it"
	if apierrors.IsForbidden(unprobed) {
		remedy = "ask an administrator to bind the ClusterRole entente-view of this version, and the Role entente-cli to call the webhook"
	}
	return append(found, Finding{
		Area: AreaPlacement, Reason: reasonNotChecked, Severity: Info, Remedy: remedy,
		Message: "it is not known whether pods of offloaded namespaces are placed: " + strings.TrimSuffix(unprobed.Error(), "."),
	})
}

// wrong returns why the API server cannot call a webhook, and what to do; empty if it can, or that is not known.
func (h Hook) wrong(now time.Time) (what, remedy string) {
	another := "delete Secret " + v1alpha1.PlacementName + " in the namespace of the installation and upgrade Entente's chart, which makes another certificate"
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	switch {
	case !h.Expires.IsZero() && now.After(h.Expires):
		return "the certificate in its caBundle expired at " + h.Expires.UTC().Format(time.RFC3339), another
	case h.Fault == nil:
		return "", ""
	case errors.Is(h.Fault, errNoAuthority):
		return h.Fault.Error(), another
	case errors.As(h.Fault, &invalid) && invalid.Reason == x509.Expired:
		return "the agent's certificate has expired: " + invalid.Error(), another
	case errors.As(h.Fault, &unknown), errors.As(h.Fault, &host), errors.As(h.Fault, &invalid):
		return "its caBundle does not go with the certificate that the agent has: " + h.Fault.Error(), another
	}
	return "the agent does not answer: " + h.Fault.Error(), "see the agent's pods: kubectl -n entente-system describe pods; new pods are placed again once it answers"
}

// PlacedText says what places pods, after a colon; empty if that is not known.
func PlacedText(by string) string {
	if version, is := strings.CutPrefix(by, v1alpha1.PlacedByPolicy); is {
		return ": a MutatingAdmissionPolicy (" + version + ")"
	}
	switch by {
	case v1alpha1.PlacedByWebhook:
		return ": a webhook of the agent"
	case v1alpha1.PlacedByNothing:
		return ": nothing, by placement.enabled of the chart"
	}
	return ""
}
