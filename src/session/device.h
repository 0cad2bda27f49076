/* session/device.h - the part of device.c that session.c uses. */
#ifndef LKS_SESSION_DEVICE_H
#define LKS_SESSION_DEVICE_H

#include "session/session.h"

/* Let waits for the session's device also send heartbeats and notice the group's failure. */
void lks__session_watch(lks__session *s);

#endif
