"""The second call asks for another way than the first."""

import tfunet

tfunet.distribute()
tfunet.distribute(batch="replica")
print("trained")
