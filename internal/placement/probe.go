package placement

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// probeUID is the request's in a probe.
const probeUID = "probe"

// Probe calls the webhook at an address as the API server does: by this name, and verified by this authority.
func Probe(ctx context.Context, address, host string, authority []byte) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return errors.New("the caBundle of its configuration has no certificate")
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request:  &admissionv1.AdmissionRequest{UID: probeUID},
	})
	if err != nil {
		return fmt.Errorf("write a review: %w", err)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+Path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("write a request: %w", err)
	}
	out, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return fmt.Errorf("call the webhook: %w", err)
	}
	defer func() { _ = out.Body.Close() }()
	var got admissionv1.AdmissionReview
	if err := json.NewDecoder(io.LimitReader(out.Body, maxReview)).Decode(&got); err != nil || out.StatusCode != http.StatusOK || got.Response == nil || got.Response.UID != probeUID {
		return fmt.Errorf("call the webhook: it responds with status %d, and not with a review", out.StatusCode)
	}
	return nil
}
