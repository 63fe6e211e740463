// Package provider is a cluster as a provider: it answers requests by what package market
// decides, signs contracts, and shows administrators the requests that wait for them.
// OfferWatch is the consumer's part: it keeps what other providers offer.
//
// Words, also of packages market and peering:
//   - offered: what policies and free capacity allow a peer now, by an Offer or an Advertisement;
//   - granted: what signed contracts give their consumers;
//   - reserved: what is not free any more, the granted and what unsigned advertisements promise;
//   - in use: what pods of consumers request of what is granted.
//
// To users, to lend is to be the provider of a peering.
package provider
