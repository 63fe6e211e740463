package homeapi

import "time"

// Limits of home on what a provider sends.
const (
	// maxStreamsOfPod is how many connections one pod has to its API server at once,
	// maxStreamsOfPeer how many all pods at one provider have.
	maxStreamsOfPod  = 8
	maxStreamsOfPeer = 128
	// openRateOfPod and openBurstOfPod bound how often a pod opens one, a second, openRateOfPeer
	// and openBurstOfPeer how often all at one provider do.
	openRateOfPod   = 5
	openBurstOfPod  = 20
	openRateOfPeer  = 50
	openBurstOfPeer = 200
	// requestRateOfPod and requestBurstOfPod bound the requests of a pod, a second,
	// requestRateOfPeer and requestBurstOfPeer those of all pods at one provider.
	requestRateOfPod   = 50
	requestBurstOfPod  = 100
	requestRateOfPeer  = 400
	requestBurstOfPeer = 800
	// maxRequestsOfPod is how many requests of a pod are served at once, watches included,
	// maxRequestsOfPeer how many of all pods at one provider.
	maxRequestsOfPod  = 128
	maxRequestsOfPeer = 1024
	// maxHeader is how many bytes the headers of a request have.
	maxHeader = 64 << 10
	// receiveBuffer is how many bytes of the bodies of requests wait to be read, on a connection
	// and of a request.
	receiveBuffer = 64 << 10
	// headerTimeout is how long the headers of a request may take to come.
	headerTimeout = 10 * time.Second
	// idleTimeout ends a connection over which nothing passes. A watch has bookmarks or pings more
	// often.
	idleTimeout = 10 * time.Minute
	// recheck is how often it is checked whether a connection may still be there.
	recheck = 2 * time.Second
	// accountLife is for how long the rates of a pod, or of a provider, are kept after its last
	// connection.
	accountLife = time.Minute
	// tokenLife is how long a token is valid, the least that API servers issue, tokenRenew after
	// how long another one is requested, and tokenTimeout how long a request may take.
	tokenLife    = 10 * time.Minute
	tokenRenew   = 8 * time.Minute
	tokenTimeout = 10 * time.Second
)

// Limits of a provider on what pods of consumers send.
const (
	// maxConnections is how many connections of pods a provider has at once,
	// maxConnectionsOfConsumer how many those of one consumer have, and maxConnectionsOfAddress how
	// many come from one address.
	maxConnections           = 512
	maxConnectionsOfConsumer = 128
	maxConnectionsOfAddress  = 16
	// addressTimeout is how long a connection waits until its pod is known: a pod may run before
	// its address is known here. addressPoll is how often that is checked.
	addressTimeout = 4 * time.Second
	addressPoll    = 100 * time.Millisecond
	// handshakeTimeout is how long the TLS handshake may take, and openTimeout how long home may
	// take to respond.
	handshakeTimeout = 10 * time.Second
	openTimeout      = 10 * time.Second
	// refusalTimeout is how long the response with a refusal may take.
	refusalTimeout = 10 * time.Second
)
